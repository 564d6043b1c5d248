"""What is in memory is compared with its checksums again and again, and takes a share of a processor."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferencer.processes.messages import GraphMessage, VersionMessage
from inferencer.supervisor.scrub import BETWEEN_SECONDS, SHARE, Scrub
from inferencer.supervisor.shared import SharedGraph, SharedVersion
from paramsync.store.store import Store
from tests.support.published import PARAMETERS, Publisher, captured, values

SIZE = PARAMETERS * 64 * 32 * 4


class Clock:
    """Each look is `step` seconds after the one before."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path / "m")
    yield publisher
    publisher.close()


def shared(publisher: Publisher, number: int) -> SharedVersion:
    """As the supervisor holds it."""
    store = Store(publisher.path)
    version = store.find(number)
    bundle = store.open(version)
    keys = [name for name in bundle.entries if name.startswith("parts/")]
    loan = bundle.lend(keys, ())
    message = VersionMessage(number, version, GraphMessage(0), loan.sizes, loan.places)
    graph = SharedGraph(0, os.memfd_create("graph"))
    return SharedVersion(graph, message, loan.descriptors, bundle, keys)


def whole(scrub: Scrub, clock: Clock) -> None:
    """From the begin of a scrub to its end."""
    scrub.run_once()
    while scrub.run_once() != pytest.approx(BETWEEN_SECONDS):
        pass
    clock.now += BETWEEN_SECONDS


def test_bytes_overwritten_with_the_time_put_back_are_found_at_the_next_scrub(publisher: Publisher) -> None:
    for step in (1, 2):
        publisher.publish(step)
    versions = [shared(publisher, 2), shared(publisher, 1)]
    suspects: list[SharedVersion] = []
    clock = Clock()
    scrub = Scrub(lambda: versions, suspects.append, clock=clock)
    assert scrub.scrubbed.at is None
    whole(scrub, clock)
    assert (suspects, scrub.scrubbed.bytes) == ([], 2 * SIZE)
    assert scrub.scrubbed.at is not None
    publisher.overwrite(1, unseen=True)
    whole(scrub, clock)
    assert {*suspects} == {versions[1]}
    os.truncate(publisher.path / "ckpt-2.data-00000-of-00001", 100)  # reading beyond its end would end the process
    whole(scrub, clock)
    assert {*suspects} == {*versions}


def test_it_pauses_so_that_it_takes_its_share_and_begins_no_sooner_than_a_minute_later(publisher: Publisher) -> None:
    publisher.publish(1)
    versions = [shared(publisher, 1)]
    clock = Clock(0.001)
    scrub = Scrub(lambda: versions, lambda _: None, clock=clock)
    assert scrub.run_once() == 0.0
    assert scrub.run_once() == pytest.approx(0.001 / SHARE - 0.001)
    clock.step = 0.0
    pauses = list(itertools.takewhile(lambda pause: pause < 1.0, (scrub.run_once() for _ in itertools.count())))
    assert len(pauses) == PARAMETERS - 1
    read = scrub.scrubbed.bytes
    assert (read, 0.0 < scrub.run_once() < BETWEEN_SECONDS, scrub.scrubbed.bytes) == (SIZE, True, read)


def test_a_file_of_two_versions_is_read_once(publisher: Publisher) -> None:
    publisher.publish(1)
    publisher.publish(2, tensors=values(1, captured()))
    versions = [shared(publisher, 2), shared(publisher, 1)]
    clock = Clock()
    scrub = Scrub(lambda: versions, lambda _: None, clock=clock)
    whole(scrub, clock)
    assert scrub.scrubbed.bytes == SIZE


def test_a_version_that_leaves_is_let_go_of(publisher: Publisher) -> None:
    publisher.publish(1)
    versions = [shared(publisher, 1)]
    version = weakref.ref(versions[0])
    scrub = Scrub(lambda: versions, lambda _: None, clock=Clock())
    for _ in range(2):
        scrub.run_once()
    versions.clear()
    assert version() is not None
    scrub.run_once()
    assert version() is None
