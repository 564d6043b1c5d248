"""The store under fire: publishers killed, readers while files are recycled, thousands of versions without growth.

Each has a short form here and its whole length in `make campaign`.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.hostile.campaigns.read import LEAST
from tests.hostile.campaigns.versions import FROZEN, tensors, version, wrong
from tests.support.programs import ROOT, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def store() -> Iterator[Path]:
    """A store in memory where there is some: that is where files are recycled at full speed."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder) / "store"


def process(module: str, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"tests.hostile.campaigns.{module}", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_publisher_killed_at_any_moment_leaves_a_whole_latest_version(store: Path, whole: bool) -> None:
    choose = random.Random(0)
    committed = 0
    for _ in range(200 if whole else 15):
        with process("publish", store) as publisher:
            assert publisher.stdout is not None
            for _ in range(choose.randint(1, 8)):
                committed = int(publisher.stdout.readline())  # the next publication after a kill works
            threading.Event().wait(choose.uniform(0, 0.03))
            publisher.kill()
            committed = max([committed, *map(int, publisher.stdout.read().split())])
        latest = Store(store).latest()
        assert latest is not None
        assert latest.number in (committed, committed + 1)  # killed between the commit and the word of it
        bundle = Store(store).open(latest)
        bundle.verify(bundle.entries)
        assert wrong(bundle, latest.number) == []
    with StoreWriter(store, keep=2) as writer:
        writer.commit(version(committed + 100), tensors(committed + 100))
    left = {path.name.split("-")[0] for path in store.iterdir()}
    assert left <= {"checkpoint", "ckpt", "publisher.lock", ".spare"}  # nothing half-written is left


@pytest.mark.promise
def test_readers_never_see_a_wrong_byte_while_files_are_recycled(store: Path, whole: bool) -> None:
    seconds = 60 if whole else 5
    with ExitStack() as stack:
        publisher = stack.enter_context(process("publish", store))
        assert publisher.stdout is not None
        publisher.stdout.readline()
        published: list[str] = []
        drain = threading.Thread(target=published.extend, args=(publisher.stdout,))
        drain.start()
        readers = [stack.enter_context(process("read", store, str(seed))) for seed in range(8 if whole else 4)]
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        threading.Event().wait(seconds)
        eventually(lambda: len(published) > 10 * seconds, lambda: f"versions, of which there are {len(published)}")
        for reader in readers:
            reader.send_signal(signal.SIGTERM)
        said = [reader.communicate()[0] for reader in readers]
        publisher.kill()
        drain.join()
    assert [reader.returncode for reader in readers] == [0] * len(readers)
    checked = sum(int(line.split()[0]) for line in said)
    latest = Store(store).latest()
    assert latest is not None
    assert all(int(line.split()[0]) >= LEAST for line in said)
    sys.stdout.write(f"{latest.number} versions published, {checked} checked by {len(readers)} readers\n")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_thousand_versions_leave_memory_and_files_as_they_were(store: Path, whole: bool) -> None:
    times = 1000 if whole else 200
    seen: list[tuple[int, int, int]] = []
    began = time.monotonic()
    with StoreWriter(store, keep=3) as writer:
        for number in range(1, times + 1):
            writer.commit(version(number), tensors(number, scale=8), unchanged=[FROZEN] if number > 1 else [])
            bundle = Store(store).open(Store(store).find(number))
            bundle.verify(bundle.entries)
            assert wrong(bundle, number) == []
            del bundle
            if number >= 10 and number % 10 == 0:
                gc.collect()
                files = [path.stat() for path in store.iterdir()]
                seen.append((resident(), len(files), sum(file.st_blocks for file in files)))
    sys.stdout.write(
        f"{times} versions in {time.monotonic() - began:.1f} s; resident, files, blocks: {seen[0]} {seen[-1]}\n"
    )
    for first, last in zip(seen[0], seen[-1], strict=True):
        assert last <= first * 1.02


@pytest.mark.parametrize("kind", ["variables", "session"])
def test_ten_thousand_publications_of_training_leave_nothing_behind(store: Path, whole: bool, kind: str) -> None:
    steps = 10_000 if whole else 600
    with process("train", kind, store, str(steps)) as training:
        said, _ = training.communicate()
    assert training.returncode == 0
    seen = [json.loads(line) for line in said.splitlines()][5:]  # once everything was used a few times
    first, last = seen[0], seen[-1]
    sys.stdout.write(f"{steps} publications, {kind}: {first} {last}\n")
    for what in ("threads", "open", "files", "blocks"):
        assert last[what] == first[what], what
    for what in ("resident", "maps", "tasks"):  # TensorFlow's own pools of threads start when they are needed
        assert last[what] <= first[what] * 1.03 + (4 if what == "tasks" else 0), what
    seconds = [one["seconds"] for one in seen]
    tenth = len(seconds) // 10
    assert statistics.median(seconds[-tenth:]) < 3 * statistics.median(seconds[:tenth])
