"""The order in which workers are told what to answer from: map, show, word, shown."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from inferencer.processes.channel import Channel, Handler, close_all, pair
from inferencer.processes.messages import GraphMessage, Joining, ModelMessage, VersionMessage
from inferencer.settings.settings import ConnectionSettings, ModelSettings
from inferencer.supervisor.epochs import Epochs
from inferencer.supervisor.shared import SharedGraph, SharedVersion
from inferencer.supervisor.workers import Worker
from paramsync.status import Status
from paramsync.version import Version
from tests.support.programs import eventually

LONG = 30.0


class Told:
    """A worker's end of a channel, which notes what it is told, and answers as a test says."""

    def __init__(self) -> None:
        ours, its = pair()
        self.channel = Channel(ours, {}, name="supervisor")
        self.mapping: Callable[[int], object] = lambda key: None
        """Called with the key of each version before it is mapped."""
        self.notes: list[Any] = []
        self.held: dict[Any, Future[Any]] = {}
        """Answers that are given later, by the keys of versions, or "show" or "join"."""
        handlers: dict[str, Handler] = {"version": self._map, "join": self._join, "show": self._show}
        handlers |= {"shown": self._shown, "states": self._states}
        self.end_of_worker = Channel(its, handlers, name="worker")
        self.ended = ""
        self.stopped: Callable[[], bool] = lambda: False
        self.telling: list[Future[Any]] = []
        self.told: dict[str, Status] = {}
        for channel in (self.channel, self.end_of_worker):
            channel.start()

    @property
    def is_stopped(self) -> bool:
        return self.stopped()

    def end(self, why: str) -> None:
        self.ended = why
        self.channel.close()

    def _map(self, message: VersionMessage, *, descriptors: Any = ()) -> Any:
        close_all(descriptors)
        self.mapping(message.key)
        self.notes.append(("map", message.key))
        return self.held.get(message.key)

    def _show(self, epoch: int, models: list[ModelMessage], whole: bool) -> Any:
        self.notes.append(("show", epoch, {model.settings.name: model.recent for model in models}, whole))
        return self.held.get("show", {})

    def _shown(self, epoch: int, gone: list[int]) -> None:
        self.notes.append(("shown", epoch, gone))

    def _join(self, models: list[ModelMessage]) -> Any:
        self.notes.append(("join", [model.settings.name for model in models]))
        return self.held.get("join", {})

    def _states(self, statuses: dict[str, Status], trouble: str) -> None:
        self.notes.append(("states", [*statuses], trouble))


class Server:
    """Models, each with the versions that serve, and the epochs of two workers."""

    def __init__(self) -> None:
        self.models: dict[str, tuple[SharedVersion, ...]] = {}
        self.joined: tuple[str, str] | None = None
        self.word = memoryview(bytearray(8)).cast("Q")
        self.epochs = Epochs(self.word, self._look)
        self.workers = [self.admitted(), self.admitted()]
        self._graphs = {name: SharedGraph(at, os.memfd_create(name)) for at, name in enumerate(("a", "b", "c"), 1000)}

    def admitted(self) -> Told:
        told = Told()
        self.epochs.admit(cast(Worker, told))
        return told

    def map(self, key: int, model: str = "a", parameters: Sequence[Any] = ()) -> SharedVersion:
        record = Version(number=key, step=key, prefix=f"ckpt-{key}", step_done_at=0.0, snapshot_at=0.0)
        version = SharedVersion(self._graphs[model], VersionMessage(key, record, GraphMessage(0), (), parameters), ())
        self.epochs.map(version)
        return version

    def swap(self, model: str, key: int) -> None:
        self.models[model] = (self.map(key, model),)
        self.epochs.change(model)

    def _look(self, name: str | None) -> list[tuple[ModelMessage, Any]]:
        found: list[tuple[ModelMessage, Any]] = []
        for model, versions in self.models.items():
            if name in (None, model):
                settings, status = ModelSettings(name=model, store=Path(model)), Status(model=model, store=Path(model))
                keys = tuple(version.message.key for version in versions)
                found.append((ModelMessage(settings, status, recent=keys), versions))
        if self.joined is not None and (name is None or name in self.joined):
            both = ConnectionSettings(name="both", first=self.joined[0], second=self.joined[1], inputs={"x": "y"})
            found.append((ModelMessage(both, Status(model="both", store=Path("both"))), None))
        return found


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.epochs.close()
    for worker in server.workers:
        worker.channel.close()


def aside(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_a_swap_tells_what_is_new_after_all_have_mapped_and_then_what_is_gone(server: Server) -> None:
    server.swap("a", 1)
    server.swap("b", 2)
    server.swap("a", 3)
    server.epochs.forget()
    for worker in server.workers:
        eventually(lambda worker=worker: ("shown", 3, []) in worker.notes, lambda: "the end")  # type: ignore[misc]
        since = worker.notes.index(("map", 3))
        assert worker.notes[since:] == [
            ("map", 3),
            ("show", 3, {"a": (3,)}, False),
            ("shown", 3, [1]),
            ("shown", 3, []),
        ]
    assert server.word[0] == 3


def test_a_model_that_takes_long_to_map_keeps_no_other_from_swapping(server: Server) -> None:
    held = server.workers[1].held[1] = Future()
    mapping = aside(lambda: server.swap("a", 1))
    eventually(lambda: ("map", 1) in server.workers[1].notes, lambda: "it to be mapped")
    server.swap("b", 2)
    assert server.word[0] == 1
    assert mapping.is_alive()
    assert len(server.epochs.tell({}, "")) == 2
    held.set_result(None)
    mapping.join(LONG)
    assert server.word[0] == 2


def test_a_worker_that_is_late_to_show_an_epoch_keeps_no_swap_from_going_on(server: Server) -> None:
    [_, late] = server.workers
    server.swap("a", 1)
    held = late.held["show"] = Future()
    server.swap("a", 2)
    server.swap("b", 3)
    assert server.word[0] == 3
    held.set_result({})
    eventually(lambda: late.notes[-1][:2] == ("shown", 3), lambda: f"it to be told all: {late.notes}")
    assert [note for note in late.notes if note[0] == "show"][-2:] == [
        ("show", 2, {"a": (2,)}, False),
        ("show", 3, {"a": (2,), "b": (3,)}, True),
    ]


def test_a_stopped_worker_is_ended_and_no_model_waits_for_it(server: Server) -> None:
    [_, stopped] = server.workers
    server.swap("a", 1)
    stopped.stopped = lambda: True
    going_on = threading.Event()
    stopped.mapping = lambda key: going_on.wait(LONG)  # its channel reads no more
    followers = [aside(lambda key=key: server.map(key, parameters=[bytes(32_000)])) for key in range(2, 42)]  # type: ignore[misc]
    for follower in followers:
        follower.join(LONG)
    assert not any(follower.is_alive() for follower in followers)
    server.swap("b", 50)
    assert "it is stopped" in stopped.ended
    going_on.set()


def test_a_worker_that_is_stopped_for_a_moment_goes_on(server: Server) -> None:
    [_, worker] = server.workers
    looks, held = [True] * 4 + [False] + [True] * 4, Future[None]()
    worker.held[1] = held

    def look() -> bool:
        stopped = looks.pop(0)
        if not looks:
            held.set_result(None)
        return stopped

    worker.stopped = look
    server.swap("a", 1)
    assert (looks, worker.ended) == ([], "")


def test_a_worker_that_maps_slower_than_versions_come_is_admitted(server: Server) -> None:
    server.swap("a", 1)
    joining, over, swaps = Told(), threading.Event(), list[threading.Thread]()

    def swap_meanwhile(key: int) -> None:
        if not over.is_set():
            swaps.append(aside(lambda: server.swap("a", key + 1)))
            eventually(lambda: ("map", key + 1) in server.workers[0].notes, lambda: "the next version")

    joining.mapping = swap_meanwhile
    admitting = aside(lambda: server.epochs.admit(cast(Worker, joining)))
    admitting.join(LONG)
    over.set()
    for thread in (admitting, *swaps):
        thread.join(LONG)
        assert not thread.is_alive()
    eventually(lambda: "show" in [note[0] for note in joining.notes], lambda: f"it to be shown: {joining.notes}")
    shown = [note[0] for note in joining.notes].index("show")
    for key in joining.notes[shown][2]["a"]:
        assert ("map", key) in joining.notes[:shown]


def test_what_became_of_joined_models_is_known_however_late_a_worker_says_it(server: Server) -> None:
    server.models, server.joined = {"a": (), "b": ()}, ("a", "b")
    for worker in server.workers:
        worker.held["show"] = Future()
    joining = Joining("", None)
    server.epochs.change()
    assert server.epochs.joined == {}
    server.workers[0].held["show"].set_result({"both": joining})
    eventually(lambda: server.epochs.joined == {"both": joining}, lambda: "the outcome")
    server.epochs.change()  # the other one has not said it yet
    assert server.epochs.joined == {"both": joining}


def test_a_model_that_is_gone_is_shown_no_more_once_its_follower_says_that_something_changed(server: Server) -> None:
    server.swap("a", 1)
    server.swap("b", 2)
    server.epochs.change()
    del server.models["b"]
    server.epochs.change("b")
    worker = server.workers[0]
    eventually(lambda: ("show", 4, {"a": (1,)}, True) in worker.notes, lambda: f"the others alone: {worker.notes}")


def test_a_worker_that_starts_has_every_version_and_the_whole_epoch_before_it_is_told_with_others(
    server: Server,
) -> None:
    server.swap("a", 1)
    server.swap("b", 2)
    third = server.admitted()
    eventually(lambda: third.notes[-1][0] == "shown", lambda: f"it to be admitted: {third.notes}")
    assert third.notes == [
        ("map", 1),
        ("map", 2),
        ("join", ["a", "b"]),
        ("join", ["a", "b"]),
        ("show", 2, {"a": (1,), "b": (2,)}, True),
        ("shown", 2, []),
    ]


def test_a_worker_that_dies_or_refuses_costs_the_others_nothing(server: Server) -> None:
    [dies, refuses] = server.workers
    dies.end("killed")
    server.swap("a", 1)
    assert server.word[0] == 1
    refuses.held["show"] = Future()
    refuses.held["show"].set_exception(KeyError(1))
    server.swap("a", 2)
    assert server.word[0] == 2
    assert "it refuses what it is told" in refuses.ended


def test_graphs_are_joined_before_they_are_shown_and_no_more_often(server: Server) -> None:
    server.models = {"a": (), "b": (), "c": ()}
    server.joined = ("a", "b")
    server.epochs.change()
    for number, model in enumerate(("a", "b", "a", "c"), 1):
        server.swap(model, number)
    joins = [note for note in server.workers[0].notes if note[0] == "join" and note[1]]
    assert joins == [("join", ["a", "b", "c", "both"])]
    assert server.word[0] == 5


def test_of_followers_only_what_is_new_is_told(server: Server) -> None:
    status = Status(model="a", store=Path("a"))
    for answer in [*server.epochs.tell({"a": status}, ""), *server.epochs.tell({"a": status}, "trouble")]:
        answer.result(LONG)
    told = [note for note in server.workers[0].notes if note[0] == "states"]
    assert told == [("states", ["a"], ""), ("states", [], "trouble")]
