"""What holds of every protocol by which predictions are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.conformance.protocols import PROTOCOLS, KServe, Protocol, Refused, TfServing
from tests.support.published import Publisher, proven
from tests.support.running import LONG, Running, synced

X = np.ones([1, 2], np.float32)
SERVED = [(kind, "own") for kind in PROTOCOLS] + [(kind, "grpcio") for kind in (TfServing, KServe)]
IDS = [f"{kind.__name__}-{server}" for kind, server in SERVED]


@contextmanager
def serving(folder: Path, server: str) -> Iterator[Running]:
    """Model `m` in versions 3, labelled stable, and 4; model `empty` has none."""
    with closing(Publisher(folder / "m")) as publisher:
        running = Running(folder / "m", folder / "empty", message_bytes=1 << 20, grpc_server=server)
        with closing(running):
            for number in (3, 4):
                publisher.publish(number)
                synced(running)
            running.server.models.follower("m").label("stable", 3, timeout=LONG)
            yield running


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Running]]:
    """Each server by its name, started when a test first asks for it."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(serving(tmp_path_factory.mktemp(name), name)))


@pytest.fixture(params=SERVED, ids=IDS)
def protocol(request: pytest.FixtureRequest, servers: Callable[[str], Running]) -> Protocol:
    kind, server = request.param
    found: Protocol = kind(servers(server))
    return found


def refused(protocol: Protocol, x: np.ndarray = X, **options: object) -> Refused:
    with pytest.raises(Refused) as raised:
        protocol.ask(x, **options)  # type: ignore[arg-type]
    assert "Traceback" not in raised.value.text
    return raised.value


def test_an_answer_is_of_the_version_that_it_names(protocol: Protocol) -> None:
    for asked, number in (({}, 4), ({"version": 3}, 3), ({"version": 4}, 4), ({"label": "stable"}, 3)):
        seen, named = protocol.ask(X, **asked)
        assert (named, proven(seen, number)) == (number, True)


def test_what_is_not_there_is_not_found_by_its_name(protocol: Protocol) -> None:
    for options, name in (({"model": "other"}, "other"), ({"version": 9}, "9"), ({"label": "canary"}, "canary")):
        found = refused(protocol, **options)
        assert (found.code, name in found.text) == ("NOT_FOUND", True), found


def test_a_model_without_a_version_is_unavailable(protocol: Protocol) -> None:
    found = refused(protocol, model="empty")
    assert (found.code, "empty" in found.text) == ("UNAVAILABLE", True), found


def test_inputs_that_are_wrong_are_refused_by_their_name(protocol: Protocol) -> None:
    for x, name in ((X, "y"), (np.array(1.0, np.float32), "x")):  # a scalar has no last axis to be summed up
        found = refused(protocol, x, name=name)
        assert (found.code, name in found.text) == ("INVALID_ARGUMENT", True), found


def test_what_is_no_request_harms_nobody(protocol: Protocol) -> None:
    for _ in range(3):
        with pytest.raises(Refused) as raised:
            protocol.nonsense()
        assert raised.value.code == "INVALID_ARGUMENT"
        assert protocol.ask(X)[1] == 4


def test_what_is_larger_than_a_message_may_be_is_refused(protocol: Protocol) -> None:
    assert refused(protocol, np.ones([1 << 18, 2], np.float32)).code == "RESOURCE_EXHAUSTED"
    assert protocol.ask(X)[1] == 4


@pytest.mark.parametrize(("kind", "server"), SERVED, ids=IDS)
def test_versions_are_swapped_between_answers_and_never_go_back(
    kind: type[Protocol], server: str, tmp_path: Path
) -> None:
    publisher, running = Publisher(tmp_path / "m"), Running(tmp_path / "m", poll_seconds=0.02, grpc_server=server)
    publisher.publish(1)
    synced(running)
    protocol, over = kind(running), threading.Event()
    answers: list[tuple[int, bool]] = []

    def ask() -> None:
        while not over.is_set():
            seen, named = protocol.ask(X)
            answers.append((named, proven(seen, named)))

    caller = threading.Thread(target=ask)
    caller.start()
    for number in range(2, 32):
        publisher.publish(number)
        synced(running)
    over.set()
    caller.join(LONG)
    named = [number for number, _ in answers]
    assert all(whole for _, whole in answers)
    assert named == sorted(named)
    assert len({*named}) > 1
    assert protocol.ask(X)[1] == 31
    running.drain()
    with pytest.raises((Refused, OSError)):  # an HTTP port that is closed refuses the connection
        protocol.ask(X)
    running.close()
    publisher.close()
