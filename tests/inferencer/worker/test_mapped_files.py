"""A mapping outlives the versions in it for a while, their lock does not; a worker drops no connection."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from inferencer.transport.event_loop import new_event_loop
from inferencer.transport.listeners import Acceptor, listeners_at, port_of
from inferencer.worker import mapped_files
from inferencer.worker.mapped_files import MappedFiles
from inferencer.worker.server import _ACCEPTING_TURNS
from paramsync.errors import GraphError
from paramsync.graphs.parameters import alias
from paramsync.host.files import lock_shared
from tests.support.troubles import descriptors

SIZE = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(bytes(SIZE))
    return path


def lent(path: Path) -> int:
    """As the supervisor sends it."""
    descriptor = os.open(path, os.O_RDONLY)
    assert lock_shared(descriptor)
    return descriptor


def is_free(path: Path) -> bool:
    """Whether a publisher would overwrite it."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_the_lock_ends_with_the_last_tensor_in_the_file(file: Path) -> None:
    files = MappedFiles()
    array = files.map(lent(file), SIZE, [(0, SIZE)])
    tensor = alias(array[:4096].view(np.float32))
    del array
    assert not is_free(file)
    same = tf.identity(tensor)
    del tensor
    assert not is_free(file)
    assert float(same[0]) == 0.0
    del same
    assert is_free(file)
    assert mappings(file) == 1


def test_what_is_written_into_a_file_that_was_mapped_is_read_where_it_was_mapped_before(file: Path) -> None:
    files = MappedFiles()
    before = files.map(lent(file), SIZE, [(0, SIZE)]).ctypes.data
    with file.open("rb+") as publisher:
        fcntl.flock(publisher, fcntl.LOCK_EX | fcntl.LOCK_NB)
        publisher.write(b"\x07" * SIZE)
    array = files.map(lent(file), SIZE, [(0, 4096), (8192, SIZE)])
    assert (array.ctypes.data, mappings(file)) == (before, 1)
    assert (array == 7).all()


def test_a_file_of_another_size_is_mapped_anew_beside_what_is_in_use(file: Path) -> None:
    files = MappedFiles()
    first = files.map(lent(file), SIZE, [(0, SIZE)])
    os.truncate(file, 2 * SIZE)
    second = files.map(lent(file), 2 * SIZE, [(0, 2 * SIZE)])
    assert (len(first), len(second), mappings(file)) == (SIZE, 2 * SIZE, 2)
    assert (first == 0).all()


def test_a_mapping_goes_once_nothing_has_used_it_for_a_while(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = MappedFiles()
    array = files.map(lent(file), SIZE, [(0, SIZE)])
    assert not files.tend()
    monkeypatch.setattr(mapped_files, "_KEPT_SECONDS", 0.0)
    assert not files.tend()
    assert mappings(file) == 1  # it is in use
    del array
    monkeypatch.setattr(mapped_files, "_KEPT_SECONDS", 60.0)
    assert files.tend()
    assert mappings(file) == 1  # it may be needed again
    monkeypatch.setattr(mapped_files, "_KEPT_SECONDS", -1.0)
    assert not files.tend()
    assert mappings(file) == 0


def test_a_mapping_of_a_file_that_has_no_name_any_more_goes_at_once(file: Path) -> None:
    files = MappedFiles()
    array = files.map(lent(file), SIZE, [(0, SIZE)])
    file.unlink()
    files.tend()
    assert (mappings(file), int(array.sum())) == (1, 0)
    del array
    files.tend()
    assert mappings(file) == 0


def test_a_file_that_is_shorter_than_was_said_is_refused_and_let_go_of(file: Path) -> None:
    files, before = MappedFiles(), descriptors()
    with pytest.raises(GraphError, match="cut"):
        files.map(lent(file), SIZE + 1, [])
    assert is_free(file)
    assert descriptors() == before
    assert len(files.map(lent(file), 0, [])) == 0
    assert is_free(file)


async def answering(turns: int) -> tuple[int, int, bool]:
    """Stop listening after some turns of the loop. Returns how many connections are made within _ACCEPTING_TURNS, how
    many later, and whether the successor can accept one."""
    made: list[asyncio.BaseTransport] = []

    class Noted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    acceptor, listeners = Acceptor(Noted, handshake_seconds=1.0), listeners_at("127.0.0.1", 0, "--port")
    with listeners[0].dup() as successor, socket.create_connection(("127.0.0.1", port_of(listeners))):
        acceptor.take(listeners, None)
        await acceptor.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        acceptor.stop(handed_on=True)
        for _ in range(_ACCEPTING_TURNS):
            await asyncio.sleep(0)
        soon = len(made)
        for _ in range(20):
            await asyncio.sleep(0)
        for transport in made:
            transport.close()
        successor.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            successor.accept()[0].close()
            return soon, len(made) - soon, True
    return soon, len(made) - soon, False


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_is_known_within_a_few_turns_or_waits_for_the_successor(turns: int) -> None:
    loop = new_event_loop()
    soon, later, waits = loop.run_until_complete(answering(turns))
    loop.close()
    assert (soon + waits, later) == (1, 0)
