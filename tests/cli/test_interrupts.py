"""Ctrl-C at any moment: it ends a command that waits, and loses nothing in the middle of publishing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paramsync.checkpoint.file_pool import SPARES
from tests.support.programs import PATIENCE, ROOT

INTERRUPTED = """
import json, os, random, signal, statistics, sys, time
from collections import deque
from pathlib import Path
import numpy as np
from paramsync.store.store import Store
from paramsync.store.commit import StoreWriter
from tests.support.written import tensors, version
path = Path(sys.argv[1])
chance = random.Random(0)

def some(number):
    return {**tensors(number), "large": np.full(3 << 20, number % 250, np.uint8)}

def interrupt(*_):
    raise KeyboardInterrupt

def opened():
    found = []
    for one in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{one}"))
        except FileNotFoundError:
            pass
    return [one for one in found if one.startswith(str(path))]

signal.signal(signal.SIGALRM, interrupt)
def commit(number):
    begin = time.perf_counter()
    writer.commit(version(number), some(number))
    took.append(time.perf_counter() - begin)

hits, left, took = 0, set(), deque(maxlen=15)
with StoreWriter(path, keep=2) as writer:
    for number in range(1, 8):
        commit(number)
    before = len(opened())
    for number in range(8, 8 + 2 * int(sys.argv[2]), 2):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, statistics.median(took) * chance.uniform(0.01, 1.1))
                writer.commit(version(number), some(number))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            hits += 1
        commit(number + 1)
        left.update(one.name for one in path.iterdir() if one.name.startswith((".tmp-", ".unlisted-")))
        store = Store(path)
        assert store.latest().number == number + 1
        for one in store.versions():
            bundle = store.open(one)
            bundle.verify(bundle.entries)
            assert all(np.array_equal(bundle.array(name), array) for name, array in some(one.number).items())
        del bundle
    # one that hits the very call that opens a file to be read loses the descriptor: Python has no way to hold it
    open_now = [one for one in opened() if not one.endswith("/checkpoint (deleted)")]
    more = len(open_now) - before
spares = sum(one.name.startswith(".spare-") for one in path.iterdir())
print(json.dumps({"hits": hits, "left": sorted(left), "more": more, "open": open_now, "spares": spares}))
"""

WAITING = """
import os, random, signal, threading
from paramsync.cli.process import interruptible

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
chance, ended, never = random.Random(0), 0, threading.Event()
for _ in range(400):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 200e-6))  # often just before the wait begins
        interruptible(never.wait)
    except KeyboardInterrupt:
        ended += 1
print(ended, flush=True)
os._exit(0)
"""


def test_an_interrupt_at_any_moment_ends_the_wait_for_a_bucket() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "400\n", "")


IN_A_WAIT = """
import signal, sys, threading
from {module} import {name}

def trace(frame, *_):
    if frame.f_code is threading.Condition.wait.__code__:  # the event's lock is held
        sys.settrace(None)
        signal.raise_signal(signal.SIGTERM)

with {name}() as found:
    sys.settrace(trace)
    for event in found if isinstance(found, tuple) else [found]:
        assert event.wait({patience})
"""


@pytest.mark.parametrize(("module", "name"), [("cli.mirror", "_until_told"), ("cli.up", "_set_by_signals")])
def test_a_signal_in_the_middle_of_a_wait_ends_the_wait(module: str, name: str) -> None:
    code = IN_A_WAIT.format(module=f"paramsync.{module}", name=name, patience=PATIENCE)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_an_interrupt_anywhere_loses_neither_files_nor_descriptors(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "store"), "1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["hits"] > 300
    assert found["left"] == []
    assert found["more"] <= 2, found["open"]
    assert found["spares"] <= SPARES
