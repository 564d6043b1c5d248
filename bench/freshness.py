"""`python -m bench freshness`: from a step that is done to the first answer with its parameters."""

from __future__ import annotations

import abc
import queue
import random
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bench import arrays, figures
from bench.asker import Asker
from bench.formats import Saver
from bench.model import Subject
from bench.options import LOOPS
from bench.ours import KEEP, WARM_UPS
from bench.progress import Progress
from bench.served import MODEL, Served, request
from bench.settings import NOT_ASKED_FOR, Settings
from bench.timing import Contestant, measure
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb

_ALONE = 10  # rounds of ours for each of all contestants', for the 99th percentile
_PHASES = ("pin", "publish", "notice", "restore", "answer")
_NEVER = PublishSchedule(every_seconds=1e9, at_start=False, at_end=False)
_REQUEST = request({"x": np.ones(1, np.float32)})
_PATIENCE = 30.0


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Ours and what people write, by turns; then ours alone."""
    with Progress() as progress, ExitStack() as stack:
        progress.say("making the parameters")
        values = arrays.random(arrays.shapes(settings.bytes, settings.tensors), seed=0)
        subject = Subject(values, frozen=settings.tensors * settings.frozen // 100)
        progress.say("starting the servers")
        ours = stack.enter_context(_open(_Ours(subject, folder / "ours")))
        peers: list[_Peer] = [
            stack.enter_context(_open(PEERS[name](subject, folder / name))) for name in settings.peers
        ]
        contestants = [
            Contestant(name="memcpy", run=arrays.memcpy(subject.module.values)),
            Contestant(name="ours", prepare=ours.train, run=ours.publish, clear=ours.note, warm_ups=WARM_UPS),
        ]
        alone = measure(contestants, runs=settings.runs * _ALONE, order=random.Random(0), track=progress.track)
        contestants += [
            Contestant(name=one.name, prepare=one.train, run=one.publish, clear=one.tidy, optional=True)
            for one in peers
        ]
        timings = measure(contestants, runs=settings.runs, order=random.Random(0), track=progress.track)
    found = figures.collect(
        settings,
        size=arrays.size(subject.module.values()),
        timings=timings,
        names=("ours",),
        peers=LOOPS,
        absent={name: NOT_ASKED_FOR for name in LOOPS if name not in settings.peers},
        quotients={"ours_over_memcpy": ("ours", "memcpy")},
    )
    samples = [*alone.samples["ours"], *timings.samples["ours"]]
    return found | {
        "ours_ms_p50": float(np.percentile(samples, 50)),
        "ours_ms_p99": float(np.percentile(samples, 99)),
        "ours_alone_ms": alone.median("ours"),
        "samples_ms": {**timings.samples, "ours_alone": alone.samples["ours"]},
        "phases": {name: statistics.median(one[name] for one in ours.phases) for name in _PHASES},
    }


class _Way(abc.ABC):
    """A trainer that has done a step, and a server that is to answer from it."""

    server: Served

    @abc.abstractmethod
    def train(self) -> None:
        """Change every value that is not frozen."""

    @abc.abstractmethod
    def publish(self) -> None:
        """Returns once an answer came from what was trained."""

    @abc.abstractmethod
    def close(self) -> None: ...


class _Ours(_Way):
    """`Publisher.publish`, and an inferencer."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        folder.mkdir()
        self.phases: list[dict[str, float]] = []
        self._subject = subject
        self._step = 0
        self._answered_at = 0.0
        self._publisher = Publisher(folder / "store", subject.module, schedule=_NEVER, keep=KEEP, on_error="raise")
        self._publisher.publish(0, wait=True)
        self.server = Served.inferencer(folder / "store")
        self._client = Inferencer(self.server.addresses["control"])
        self._events: queue.SimpleQueue[pb.Event] = queue.SimpleQueue()
        self.server.ask_until(_REQUEST, 0)
        self._asker = _asker(self.server, folder)
        threading.Thread(target=self._listen, daemon=True).start()

    def train(self) -> None:
        self._subject.train()
        self._step += 1

    def publish(self) -> None:
        version = self._publisher.publish(self._step)
        self._asker.until(version.number)
        self._answered_at = time.time()

    def note(self) -> None:
        """Keep what the time went into, as the record of the version and the inferencer's event tell."""
        while (event := self._events.get(timeout=_PATIENCE)).version.step != self._step:
            pass
        version, restored_from = event.version, event.at - event.restore_seconds
        marks = (version.step_done_at, version.snapshot_at, version.committed_at, restored_from, event.at)
        ends = (*marks[1:], self._answered_at)
        self.phases.append({name: (end - begin) * 1e3 for name, begin, end in zip(_PHASES, marks, ends, strict=True)})

    def close(self) -> None:
        self._asker.close()
        self._client.close()
        self.server.close()
        self._publisher.close()

    def _listen(self) -> None:
        for event in self._client.watch(MODEL):
            if event.kind == pb.Event.SWAPPED:
                self._events.put(event)


class _Peer(_Way):
    """Writes into a folder that a loop in another process looks at."""

    name: str
    loop: str
    poll_seconds = 0.0

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.folder = folder / "saved"
        self.folder.mkdir(parents=True)
        self.step = 0
        shapes = [part.shape for part in subject.module.parts]
        said = {
            "bytes": 4 * sum(map(int, map(np.prod, shapes))),
            "tensors": len(shapes),
            "poll-seconds": self.poll_seconds,
        }
        options = [f"--{name}={one}" for name, one in said.items()]
        self.server = Served("bench.loops", [self.loop, str(self.folder), *options], log=folder / "log")
        self.asker = _asker(self.server, folder)

    def publish(self) -> None:
        self.save()
        self.asker.until(self.step)

    @abc.abstractmethod
    def save(self) -> None: ...

    def tidy(self) -> None:
        """Remove what is old."""

    def close(self) -> None:
        self.asker.close()
        self.server.close()


class _Saver(_Peer):
    """`Saver.save`; the loop restores it at once."""

    name, loop = "saver", "saver"

    def __init__(self, subject: Subject, folder: Path) -> None:
        super().__init__(subject, folder)
        self._saver = Saver(subject)

    def train(self) -> None:
        self._saver.train()
        self.step += 1

    def save(self) -> None:
        self._saver.save_step(self.folder, self.step)


class _SaverPoll(_Saver):
    """The same; the loop looks once a second, as most do."""

    name, poll_seconds = "saver_poll", 1.0

    def train(self) -> None:
        super().train()
        threading.Event().wait(random.random() * self.poll_seconds)


class _SavedModule(_Peer):
    """`tf.saved_model.save` of a tf.Module into a numbered folder; the loop loads it at once."""

    name, loop = "savedmodule", "savedmodel"

    def __init__(self, subject: Subject, folder: Path) -> None:
        super().__init__(subject, folder)
        self.subject = subject

    def train(self) -> None:
        self.subject.train()
        self.step += 1

    def save(self) -> None:
        aside = self.folder / f"aside-{self.step}"
        self.export(str(aside))
        aside.rename(self.folder / str(self.step))

    def export(self, path: str) -> None:
        tf.saved_model.save(self.subject.module, path)

    def tidy(self) -> None:
        shutil.rmtree(self.folder / str(self.step - 1), ignore_errors=True)


class _SavedModel(_SavedModule):
    """The same as Keras exports it, for TensorFlow Serving."""

    name = "savedmodel"

    def export(self, path: str) -> None:
        self.subject.keras.export(path, verbose=False)


PEERS: dict[str, Callable[[Subject, Path], _Peer]] = {
    "saver": _Saver,
    "saver_poll": _SaverPoll,
    "savedmodel": _SavedModel,
    "savedmodule": _SavedModule,
}
"""As `options.LOOPS` names them."""


def _asker(server: Served, folder: Path) -> Asker:
    path = folder / "request"
    path.write_bytes(_REQUEST)
    return Asker(server.addresses["predictions"], path)


@contextmanager
def _open(way: Any) -> Iterator[Any]:
    try:
        yield way
    finally:
        way.close()
