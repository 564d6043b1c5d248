"""Several operators at once, over real gRPC: every answer holds until its operator changes it, and after a restart."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from paramsync.v1 import sync_pb2 as pb
from tests.support.published import Publisher, proven
from tests.support.running import LONG, Running, request, seen, synced

Code = grpc.StatusCode
ROUNDS = 40  # of each operator
GOOD = (7, 8, 9, 10, 11)
NOWHERE = 1_000_000


@dataclass
class Server:
    """What a client sees of it."""

    running: Running

    def answers(self, name: str = "m", label: str = "") -> int | None:
        """Which version does, as its parameters prove; None where nobody knows the model or label."""
        message = request(name)
        if label:
            message.model_spec.version_label = label
        try:
            answer = self.running.prediction_service.Predict(message, timeout=LONG)
        except grpc.RpcError as error:
            if error.code() is Code.NOT_FOUND:
                return None
            raise
        number = int(answer.model_spec.version.value)
        assert proven(seen(answer), number)
        return number

    def status(self) -> pb.ModelStatus:
        found: pb.GetStatusResponse = self.running.sync.GetStatus(pb.GetStatusRequest(model="m"), timeout=LONG)
        return found.models[0]

    def refuses(self, call: Callable[..., Any], message: Any) -> Code | None:
        """Why; None where it does not."""
        try:
            call(message, timeout=LONG)
        except grpc.RpcError as error:
            code: Code = error.code()
            return code
        return None


class Labels:
    """An operator of two labels, which nobody else speaks of."""

    def __init__(self, server: Server, names: tuple[str, str], choice: random.Random) -> None:
        self._server, self._names, self._choice = server, names, choice
        self.known: dict[str, int] = {}

    def act(self) -> None:
        label, sync = self._choice.choice(self._names), self._server.running.sync
        if self._choice.random() < 0.4:
            code = self._server.refuses(sync.Unlabel, pb.UnlabelRequest(model="m", label=label))
            assert code is (None if label in self.known else Code.NOT_FOUND)
            self.known.pop(label, None)
        else:
            number = self._choice.choice((*GOOD, NOWHERE))
            code = self._server.refuses(sync.Label, pb.LabelRequest(model="m", label=label, version=number))
            assert code is (Code.NOT_FOUND if number == NOWHERE else None)
            if code is None:
                self.known[label] = number
        found = {name: self._server.answers(label=name) for name in self._names}
        assert found == {name: self.known.get(name) for name in self._names}


class Pins:
    """The operator who pins, unpins and goes back."""

    def __init__(self, server: Server, choice: random.Random) -> None:
        self._server, self._choice = server, choice
        self.pinned: int | None = None
        self._serving = GOOD[-1]
        self._before = [*GOOD[-2::-1]]

    def act(self) -> None:
        sync = self._server.running.sync
        kind = self._choice.choice(("pin", "pin nowhere", "unpin", "rollback", "rollback"))
        if kind == "pin":
            number = self._choice.choice(GOOD)
            assert self._server.refuses(sync.Pin, pb.PinRequest(model="m", version=number)) is None
            self._served(number)
            self.pinned = number
        elif kind == "pin nowhere":
            code = self._server.refuses(sync.Pin, pb.PinRequest(model="m", version=NOWHERE))
            assert code is Code.NOT_FOUND
        elif kind == "unpin":
            assert self._server.refuses(sync.Unpin, pb.UnpinRequest(model="m")) is None
            self._served(GOOD[-1])
            self.pinned = None
        else:
            self._rollback(sync)
        status = self._server.status()
        assert (self._server.answers(), status.serving.number) == (self._serving, self._serving)
        assert (status.pinned if status.HasField("pinned") else None) == self.pinned

    def _rollback(self, sync: Any) -> None:
        lower = [number for number in GOOD if number < self._serving]
        expected = self._before[0] if self._before else max(lower, default=None)
        code = self._server.refuses(sync.Rollback, pb.RollbackRequest(model="m"))
        assert code is (Code.FAILED_PRECONDITION if expected is None else None)
        if expected is not None:
            del self._before[:1]
            self._serving = self.pinned = expected

    def _served(self, number: int) -> None:
        if number != self._serving:
            self._before = [self._serving, *(one for one in self._before if one not in (number, self._serving))]
            self._serving = number


class Publishes:
    """A trainer whose model has diverged."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def act(self) -> None:
        self._publisher.publish_bad()


class Syncs:
    def __init__(self, server: Server) -> None:
        self._server = server

    def act(self) -> None:
        """Where a version is pinned, that is what it hears."""
        code = self._server.refuses(lambda asked, **_: list(synced(self._server.running)), None)
        assert code in (None, Code.FAILED_PRECONDITION)
        assert self._server.answers() in GOOD


@pytest.mark.parametrize("seed", [1, 2])
def test_the_answers_that_operators_get_hold_and_survive_a_restart(tmp_path: Path, seed: int) -> None:
    publisher = Publisher(tmp_path / "m", keep=ROUNDS + len(GOOD))
    running = Running(tmp_path / "m", state=tmp_path / "state")
    server = Server(running)
    for number in GOOD:
        publisher.publish(number)
        synced(running)
    choices = [random.Random(f"{seed} {at}") for at in range(4)]
    pins = Pins(server, choices[0])
    labels = [Labels(server, (f"{at}a", f"{at}b"), choices[1 + at]) for at in range(3)]
    failed: list[BaseException] = []

    def work(act: Callable[[], None]) -> None:
        try:
            for _ in range(ROUNDS):
                if failed:
                    return
                act()
        except BaseException as error:  # noqa: BLE001, it is raised below
            failed.append(error)

    others = [Syncs(server).act, Publishes(publisher).act]
    acts = [pins.act, *others, *(one.act for one in labels)]
    threads = [threading.Thread(target=work, args=(act,)) for act in acts]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(4 * LONG)
        if failed:
            raise failed[0]
        assert not any(thread.is_alive() for thread in threads)
        running.drain()
    finally:
        running.close()
    again = Running(tmp_path / "m", state=tmp_path / "state")
    try:
        follower = again.server.models.follower("m")
        follower.looked.result(LONG)
        known = {label: number for one in labels for label, number in one.known.items()}
        status = follower.status()
        assert (status.pinned, status.labels) == (pins.pinned, known)
        again.drain()
    finally:
        again.close()
        publisher.close()
