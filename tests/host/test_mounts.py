"""Publishing where the file system says no: full, read-only, forbidden. And when it says yes again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.programs import ROOT, bounded
from tests.support.whole import assert_whole

pytestmark = pytest.mark.slow

NOBODY = 65534

BEGIN = """
import os, subprocess, sys
from pathlib import Path
import numpy as np
from paramsync.errors import StoreError
from paramsync.store.store import Store
from paramsync.store.commit import StoreWriter
from tests.support.whole import assert_whole
from tests.support.written import names, tensors, version
path = Path(sys.argv[1]) / "store"

def run(*command):
    return subprocess.run(command, check=False, capture_output=True).returncode == 0

def commit(writer, number, **more):
    writer.commit(version(number), {**tensors(number), **more})
    assert assert_whole(path) == number
    assert not any(name.startswith((".tmp-", ".unlisted-")) for name in names(path)), names(path)

def refused(act, said, latest, held):
    try:
        act()
    except StoreError as error:
        assert str(error).startswith(f"store {path}: ") and said in str(error), error
    else:
        raise AssertionError("it was not refused")
    assert assert_whole(path) == latest
    held.verify(held.entries)
"""


def alone(command: str, *, root: bool) -> None:
    """Run a shell command where its mounts are its own, and gone with it; skip where there can be none."""
    unshare = ["unshare", "--mount"] if root else ["unshare", "--user", "--map-root-user", "--mount"]
    if root and os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no test mount a file system of its own")
    done = subprocess.run([*unshare, "sh", "-ec", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def python(script: str, path: Path) -> str:
    file = path.with_name(f"{path.name}.py")
    file.write_text(BEGIN + script)
    return f"PYTHONPATH={ROOT} {sys.executable} {file} {path}"


def disk(path: Path, *, kind: str, megabytes: int) -> str:
    """A command that makes a disk in a file and mounts it there."""
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"needs mkfs.{kind}, to make a disk")
    image = path.with_name("disk")
    image.touch()
    os.truncate(image, megabytes << 20)
    return f"mkfs.{kind} -q {image} && mount -o loop {image} {path}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "place"
    path.mkdir()
    return path


# Read-only ------------------------------------------------------------------------------------------------------------

HIDDEN = """
with StoreWriter(path, keep=2) as writer:
    for number in (1, 2, 3):
        commit(writer, number)
    held = Store(path).open(Store(path).find(3))
    assert run("mount", "--bind", path, path) and run("mount", "-o", "remount,bind,ro", path)
    for number in (4, 5):
        refused(lambda: commit(writer, number), f"version {number} was not published: Read-only file system", 3, held)
    refused(lambda: writer.add_graph("ab", b"graph"), "graph ab was not written: Read-only file system", 3, held)
    assert run("umount", path)
    for number in (6, 7, 8):
        commit(writer, number)
    assert run("mount", "--bind", path, path) and run("mount", "-o", "remount,bind,ro", path)
refused(lambda: StoreWriter(path), "cannot be made a store: Read-only file system", 8, held)
assert run("umount", path)
with StoreWriter(path) as writer:
    commit(writer, 9)
"""


def test_a_store_that_becomes_read_only_under_its_publisher_is_read_on_and_published_to_when_it_is_not(
    place: Path,
) -> None:
    alone(f"mount -t tmpfs -o size=32m none {place} && {python(HIDDEN, place)}", root=False)


# Full -----------------------------------------------------------------------------------------------------------------

FULL = """
said, room = sys.argv[2], sys.argv[3:]
with StoreWriter(path, keep=2) as writer:
    for number in (1, 2, 3):
        commit(writer, number)
    held = Store(path).open(Store(path).find(3))
    large = np.random.default_rng(0).integers(0, 256, 24 << 20, np.uint8)
    for number in (4, 5):
        refused(lambda: commit(writer, number, large=large), f"version {number} was not published: {said}", 3, held)
    assert run("sync", "-f", path)  # some disks give back what was removed only then
    commit(writer, 6)
    refused(lambda: commit(writer, 7, large=large), said, 6, held)
    assert run(*room)
    commit(writer, 8, large=large)
    for number in (9, 10, 11):
        commit(writer, number)
"""


def test_a_publisher_on_a_full_disk_is_told_so_and_goes_on_when_there_is_room(place: Path) -> None:
    mounted = disk(place, kind="ext4", megabytes=64)
    ballast = f"dd if=/dev/zero of={place}/ballast bs=1M count=36"
    room = f"rm {place}/ballast"
    alone(f"{mounted} && {ballast} && {python(FULL, place)} 'No space left on device' {room}", root=True)


# Forbidden ------------------------------------------------------------------------------------------------------------

PUBLISHER = """
import os, sys
from pathlib import Path
from paramsync.errors import StoreError
from paramsync.store.commit import StoreWriter
from tests.support.written import tensors, version
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
with StoreWriter(Path(sys.argv[1]), keep=2) as writer:
    for line in sys.stdin:
        try:
            writer.commit(version(int(line)), tensors(int(line)))
            print("published", flush=True)
        except StoreError as error:
            print(error, flush=True)
"""


class Publisher:
    """A process that may do what its user may."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def publish(self, number: int) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@contextmanager
def publisher(store: Path) -> Iterator[Publisher]:
    command = [sys.executable, "-c", PUBLISHER, str(store), str(NOBODY)]
    pipe = subprocess.PIPE
    with bounded(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1)) as process:
        yield Publisher(process)
        process.communicate()
        assert process.returncode == 0


@pytest.fixture
def store() -> Iterator[Path]:
    """A directory that the publisher owns, wherever other users cannot look."""
    with tempfile.TemporaryDirectory() as outside:
        Path(outside).chmod(0o755)
        path = Path(outside) / "store"
        path.mkdir()
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        yield path
        path.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
def test_files_that_became_another_users_are_neither_changed_nor_in_the_way(store: Path) -> None:
    with publisher(store) as one:
        for number in (1, 2, 3, 4):
            assert one.publish(number) == "published"
    spares = list(store.glob(".spare-*"))
    assert spares
    for file in store.iterdir():
        if file.name != "publisher.lock":
            os.chown(file, 0, 0)
            file.chmod(0o644)
    held = [(file.open("rb"), file.read_bytes()) for file in spares]
    with publisher(store) as one:
        for number in (5, 6, 7, 8):
            assert one.publish(number) == "published"
            assert assert_whole(store) == number
    for one_held, content in held:
        with one_held:
            assert one_held.read() == content
