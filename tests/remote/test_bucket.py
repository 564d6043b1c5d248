"""One suite over every object store that the protocol may meet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from obstore.store import MemoryStore

from paramsync.errors import RemoteError
from paramsync.remote import protocol
from paramsync.remote.bucket import Bucket
from paramsync.remote.protocol import Answer, Answered, Create, Delete, Found, Replace, Written
from paramsync.remote.state import State

WRITERS = 32


@pytest.fixture(params=["memory", pytest.param("seaweedfs", marks=pytest.mark.slow)])
def gateways(request: pytest.FixtureRequest) -> list[Bucket]:
    """Two ways to the same empty folder of a bucket."""
    if request.param == "memory":
        store: Any = MemoryStore()
        return [Bucket("s3://bucket/m", store=store)] * 2
    server = request.getfixturevalue("seaweedfs")
    folder = f"{request.node.name.replace('[', '-').replace(']', '')}/m"
    return [Bucket("s3://bucket/m", store=server.store(folder, gateway=at)) for at in (0, 1)]


@pytest.fixture
def bucket(gateways: list[Bucket]) -> Bucket:
    return gateways[0]


def test_a_fit_server_passes_the_probe_which_leaves_nothing(bucket: Bucket) -> None:
    bucket.probe()
    assert bucket.names() == []


def test_a_state_is_created_once_and_replaced_only_by_who_knows_it(bucket: Bucket) -> None:
    assert bucket.read() is Answer.MISSING
    first = bucket.answer(Create(b"1"))
    assert isinstance(first, Written)
    assert bucket.answer(Create(b"2")) is Answer.REFUSED
    second = bucket.answer(Replace(b"3", first.tag))
    assert isinstance(second, Written)
    assert bucket.answer(Replace(b"4", first.tag)) is Answer.REFUSED
    assert bucket.read() == Found(b"3", second.tag)
    assert bucket.read(second.tag) is None


def test_data_comes_back_in_ranges_and_is_deleted_once_or_twice(bucket: Bucket) -> None:
    content = np.random.default_rng(0).integers(0, 256, 20 << 20, np.uint8)
    bucket.put("data/1/a", content.tobytes())
    bucket.put("data/1/b", (content[at : at + (1 << 20)].tobytes() for at in range(0, len(content), 1 << 20)))
    for name in ("data/1/a", "data/1/b"):
        out = np.zeros_like(content)
        bucket.get_into(name, out)
        assert (out == content).all()
    assert sorted(bucket.names("data")) == ["data/1/a", "data/1/b"]
    assert bucket.answer(Delete("data/1/a")) in (Answer.DONE, Answer.MISSING)
    assert bucket.answer(Delete("data/1/a")) in (Answer.DONE, Answer.MISSING)
    with pytest.raises(FileNotFoundError):
        bucket.get("data/1/a", 100)


def test_an_object_of_another_size_is_refused(bucket: Bucket) -> None:
    bucket.put("data/1/a", b"x" * 100)
    with pytest.raises(RemoteError, match="at most 99 bytes"):
        bucket.get("data/1/a", 99)
    with pytest.raises(RemoteError, match="expected 101 bytes"):
        bucket.get_into("data/1/a", np.zeros(101, np.uint8))


def race(count: int, write: Callable[[int], Any]) -> list[Any]:
    barrier = threading.Barrier(count)

    def run(at: int) -> Any:
        barrier.wait()
        return write(at)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def replace(gateways: list[Bucket], turn: int, tag: str, at: int) -> Answered:
    return gateways[at % 2].answer(Replace(b"%d %d" % (turn, at), tag))


def test_of_many_writers_through_two_gateways_one_wins_each_race(gateways: list[Bucket], whole: bool) -> None:
    first = gateways[0].answer(Create(b"0"))
    assert isinstance(first, Written)
    tag = first.tag
    for turn in range(1000 if whole else 3):
        answers = race(WRITERS, partial(replace, gateways, turn, tag))
        written = [answer for answer in answers if isinstance(answer, Written)]
        assert len(written) <= 1
        found = gateways[1].read()
        assert isinstance(found, Found)
        assert not written or found.tag == written[0].tag
        tag = found.tag


def test_of_two_publishers_that_begin_at_once_only_one_may_go_on(gateways: list[Bucket]) -> None:
    stop = threading.Event()
    begun = race(2, lambda at: gateways[at].perform(protocol.take_over(f"{at}" * 32, f"{at:032x}"), stop))
    assert len({held.state.epoch for held in begun}) == 2
    assert len({held.state.run for held in begun}) == 1

    def change(state: State) -> State:
        return state

    outcomes = []
    for at, held in enumerate(begun):
        try:
            gateways[at].perform(protocol.commit(held, change, f"{7 + at:032x}"), stop)
            outcomes.append("goes on")
        except RemoteError as error:
            outcomes.append(type(error).__name__)
    assert sorted(outcomes) == ["FencedError", "goes on"]
