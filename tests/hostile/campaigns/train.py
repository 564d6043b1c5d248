"""Trains a small model, publishes each step: `python -m tests.hostile.campaigns.train variables|session STORE STEPS`.

Writes a line of JSON a hundred times on its way: what it has in memory, threads, files, and how long publishing takes.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.session import SessionPublisher
from tests.support.mirrored import Counters

v1 = tf.compat.v1

NEVER = PublishSchedule(at_start=False, at_end=False)


@contextmanager
def variables(store: str) -> Iterator[Callable[[int], object]]:
    """Publishes variables of TensorFlow 2; what is given trains a step, and publishes it."""
    model = Counters()
    with Publisher(store, model, schedule=NEVER, on_error="raise") as publisher:

        def step(number: int) -> None:
            for one in model.many:
                one.assign_add(tf.ones_like(one))
            publisher.publish(number, wait=True, metrics={"loss": 1 / number})

        yield step


@contextmanager
def session(store: str) -> Iterator[Callable[[int], object]]:
    """The same for variables of a session; every other publication overtakes the one before, perhaps."""
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [])
        kinds = {"resource": True, "reference": False}
        many = [v1.get_variable(name, [64, 257], use_resource=kind) for name, kind in kinds.items()]
        publisher = SessionPublisher(
            store, x, x + tf.add_n([tf.reduce_sum(one) for one in many]), schedule=NEVER, on_error="raise"
        )
        train = tf.group(*[one.assign_add(tf.ones([64, 257])) for one in many])
        with v1.Session() as running, publisher:
            running.run(v1.global_variables_initializer())
            train_step = running.make_callable(train)

            def step(number: int) -> None:
                train_step()
                publisher.publish_session(running, number, wait=number % 2 == 0)

            yield step


def seen(store: str, seconds: float) -> str:
    gc.collect()
    files = [path.stat() for path in Path(store).iterdir()]
    found = {
        "resident": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "threads": threading.active_count(),
        "tasks": len(list(Path("/proc/self/task").iterdir())),
        "open": len(list(Path("/proc/self/fd").iterdir())),
        "maps": Path("/proc/self/maps").read_text().count("\n"),
        "files": len(files),
        "blocks": sum(file.st_blocks for file in files),
        "seconds": seconds,
    }
    return json.dumps(found)


def main(kind: str, store: str, steps: str) -> None:
    every = max(int(steps) // 100, 2)
    with {"variables": variables, "session": session}[kind](store) as step:
        began = time.process_time()
        for number in range(1, int(steps) + 1):
            step(number)
            if number % every == 0:
                sys.stdout.write(f"{seen(store, (time.process_time() - began) / every)}\n")
                began = time.process_time()


if __name__ == "__main__":
    main(*sys.argv[1:])
