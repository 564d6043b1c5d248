"""Of versions that do not serve, mapped pages are let go while another one is restored; what they answer stays."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from paramsync.checkpoint.reader import Bundle
from paramsync.dtypes import Array
from paramsync.errors import ParameterError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.replica import Replica, Verification
from paramsync.graphs.parameters import alias
from paramsync.inference.resident import Resident
from paramsync.sources.source import Progress
from tests.support.checkpoints import resident, write
from tests.support.followers import LONG, serving
from tests.support.published import PARAMETERS, Publisher, saver_store

X = {"x": np.ones([1, 2], np.float32)}
SIZE = PARAMETERS * 64 * 32 * 4  # bytes of a version's parameters
MIXED: dict[str, Array] = {
    "floats": np.arange(70_000, dtype=np.float32),
    "bytes": np.arange(99, dtype=np.int8),
    "strings": np.array([b"a", b"bc"], object),
}


@pytest.fixture(params=["checksums", "sizes"])
def replica(publisher: Publisher, request: pytest.FixtureRequest) -> Replica:
    verification: Verification = request.param
    return Replica("m", publisher.path, resident=3, verification=verification)


def bring_in(replica: Replica, publisher: Publisher, step: int) -> list[dict[int, int]]:
    """Publishes, restores and swaps. What was in the page table of each version when the restore began."""
    seen: list[dict[int, int]] = []

    def tell(progress: Progress) -> None:
        seen.append({one.version.number: pages(publisher, one) for one in replica.residents})

    replica.swap(replica.restore(publisher.publish(step), tell))
    replica.tend()
    return seen[:1]


def pages(publisher: Publisher, one: Resident) -> int:
    """Bytes of a version's data file that this process has in its page table, as readers map it."""
    path = publisher.path / f"{one.version.prefix}.data-00000-of-00001"
    return resident(path.parent, name=path.name)


def proven(replica: Replica, number: int) -> bool:
    outputs, version = replica.predict(X, version=number)
    return version.number == number and outputs["seen"].numpy().tolist() == [float(number)] * PARAMETERS


def test_only_what_serves_or_has_a_label_is_in_the_page_table_when_a_restore_begins(
    publisher: Publisher, replica: Replica
) -> None:
    for step in (1, 2, 3):
        bring_in(replica, publisher, step)
    replica.label("old", replica.take(1))
    replica.tend()
    (seen,) = bring_in(replica, publisher, 4)
    assert (seen[3] >= SIZE, seen[2], seen[1] >= SIZE) == (True, 0, True)
    assert all(proven(replica, number) for number in (4, 3, 2, 1))
    replica.unlabel("old")
    (seen,) = bring_in(replica, publisher, 5)
    assert (seen[4] >= SIZE, seen[3], seen[2]) == (True, 0, 0)
    assert all(proven(replica, number) for number in (5, 4, 3))


def test_a_version_whose_pages_were_let_go_has_them_again_when_it_serves_or_has_a_label(
    publisher: Publisher, replica: Replica
) -> None:
    for step in (1, 2, 3):
        bring_in(replica, publisher, step)
    bad = publisher.publish(4, tensors={})
    with pytest.raises(ParameterError):
        replica.restore(bad)
    replica.tend()
    one, two = replica.take(1), replica.take(2)
    assert (pages(publisher, one), pages(publisher, two)) == (0, 0)
    replica.swap(one)
    replica.label("old", two)
    replica.tend()
    assert pages(publisher, one) >= SIZE
    assert pages(publisher, two) >= SIZE


def test_a_rollback_after_a_restore_that_failed_answers_from_the_version_before(publisher: Publisher) -> None:
    follower = Follower(Replica("m", publisher.path))
    for step in (1, 2):
        publisher.publish(step)
        follower.run_once()
    publisher.publish_bad(3)
    follower.run_once()
    follower.ask(Action.ROLLBACK)
    follower.run_once()
    assert serving(follower) == 1
    assert proven(follower.replica, 1)
    assert pages(publisher, follower.replica.take(1)) >= SIZE


def test_a_version_answers_the_same_to_the_bit_while_its_pages_come_and_go(
    publisher: Publisher, replica: Replica
) -> None:
    for step in (1, 2):
        bring_in(replica, publisher, step)
    previous = replica.take(1)
    expected = [tensor.numpy().tobytes() for tensor in previous.parameters]
    answered = threading.Semaphore(0)
    over = threading.Event()
    wrong: list[object] = []

    def ask() -> None:
        while not over.is_set():
            seen = previous.predict(X)["seen"].numpy().tolist()
            if seen != [1.0] * PARAMETERS or [one.numpy().tobytes() for one in previous.parameters] != expected:
                wrong.append(seen)
            answered.release()

    asks = threading.Thread(target=ask)
    asks.start()
    try:
        for _ in range(200):
            replica.source.let_pages_go([previous])
            assert answered.acquire(timeout=LONG)
    finally:
        over.set()
        asks.join()
    assert wrong == []


def test_a_version_that_no_request_holds_is_kept_by_nothing_that_knows_its_pages(
    publisher: Publisher, replica: Replica
) -> None:
    bring_in(replica, publisher, 1)
    assert resident(publisher.path) >= SIZE
    replica.release()
    replica.tend()
    assert (replica.leaving, resident(publisher.path)) == ((), 0)


# What is copied is left alone -----------------------------------------------------------------------------------------


def test_what_tensorflow_wrote_answers_as_before(tmp_path: Path) -> None:
    saver_store(tmp_path / "v1", 2)
    replica = Replica("m", tmp_path / "v1", inputs=["x:0"], outputs=["y:0"])
    residents = [replica.restore(found.version) for found in replica.source.look().published or []]
    for one in residents:
        replica.swap(one)
        replica.source.let_pages_go(residents)
    for one, expected in zip(residents, (1.0, 2.0), strict=True):
        outputs = one.predict({"x": np.ones([3, 2], np.float32)})
        assert next(iter(outputs.values())).numpy().tolist() == [[expected] * 2] * 3


@pytest.mark.parametrize("mapped", [True, False])
def test_arrays_and_tensors_are_the_same_to_the_bit_wherever_they_lie(tmp_path: Path, mapped: bool) -> None:
    write(tmp_path / "ckpt-1", MIXED)
    read = Bundle.open(tmp_path / "ckpt-1", mapped=mapped)
    read.verify(read.entries)
    arrays = {name: read.array(name) for name in MIXED}
    tensors = [alias(arrays[name]) for name in MIXED]  # the bytes and strings are copied by TensorFlow
    unaligned = alias(arrays["floats"][1:])
    assert (resident(tmp_path) > 0) == mapped
    read.let_pages_go()
    assert resident(tmp_path) == 0
    for (name, values), tensor in zip(MIXED.items(), tensors, strict=True):
        assert arrays[name].tolist() == tensor.numpy().tolist() == values.tolist()
    assert unaligned.numpy().tolist() == MIXED["floats"][1:].tolist()
    read.verify(read.entries)


def test_a_file_without_bytes_has_no_pages(tmp_path: Path) -> None:
    write(tmp_path / "ckpt-1", {"a": np.zeros((0, 3), np.float32)})
    read = Bundle.open(tmp_path / "ckpt-1")
    read.let_pages_go()
    assert read.array("a").shape == (0, 3)
