"""A version whose mapped files are overwritten answers no more; callers hear why no version serves."""

from __future__ import annotations

import re

import grpc
import numpy as np
import pytest

from paramsync.cli.__main__ import main
from paramsync.errors import NotServingError, SyncError, UnknownLabelError, UnknownVersionError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.replica import Replica
from paramsync.status import State, Status
from tests.support.followers import quarantined, serving
from tests.support.http import call
from tests.support.kserve import method, negated
from tests.support.published import Publisher, ask, captured, proven, rewrite, values
from tests.support.running import Running, refused, request, synced


def followed(follower: Follower, publisher: Publisher, *steps: int) -> None:
    """Publish these steps; the follower serves each."""
    for step in steps:
        publisher.publish(step)
        follower.run_once()
        assert serving(follower) == step


def asked(follower: Follower, action: Action, number: int, label: str = "") -> Status:
    answer = follower.ask(action, number, label)
    follower.run_once()
    return answer.result(0)


def test_the_version_in_memory_takes_the_place_of_the_damaged_one(follower: Follower, publisher: Publisher) -> None:
    followed(follower, publisher, 1, 2)
    publisher.overwrite(2)
    follower.run_once()
    status = follower.status()
    assert (serving(follower), quarantined(follower), status.state) == (1, [2], State.SERVING)
    assert (status.quarantines, status.resident) == (1, (1,))
    assert proven(*ask(follower))
    with pytest.raises(UnknownVersionError):
        ask(follower, version=2)
    followed(follower, publisher, 3)
    assert proven(*ask(follower))


def test_without_another_version_answers_fail_with_the_reason_until_there_is_one(
    follower: Follower, publisher: Publisher
) -> None:
    followed(follower, publisher, 1)
    content = publisher.overwrite(1)
    follower.run_once()
    assert (serving(follower), quarantined(follower), follower.status().state) == (None, [1], State.WAITING)
    with pytest.raises(NotServingError, match=r"version 1 is quarantined: .*expected checksum"):
        ask(follower)
    rewrite(publisher.path / "ckpt-1.data-00000-of-00001", content)
    follower.run_once()
    assert (serving(follower), quarantined(follower), proven(*ask(follower))) == (1, [], True)


def test_told_to_serve_damaged_versions_it_does_until_there_is_a_good_one_and_says_so(publisher: Publisher) -> None:
    follower = Follower(Replica("m", publisher.path), serve_damaged=True)
    followed(follower, publisher, 1)
    publisher.overwrite(1)
    for _ in range(2):
        follower.run_once()
        status = follower.status()
        assert (status.state, serving(follower), quarantined(follower)) == (State.DAMAGED, 1, [1])
        assert "version 1 is quarantined" in status.short_reason
        assert (ask(follower)[1], proven(*ask(follower))) == (1, False)
    followed(follower, publisher, 2)
    assert (follower.status().state, follower.status().resident) == (State.SERVING, (2,))
    publisher.publish(3)
    follower.run_once()
    publisher.overwrite(3)
    follower.run_once()
    assert (serving(follower), follower.status().state, proven(*ask(follower))) == (2, State.SERVING, True)


def test_a_damaged_version_that_does_not_serve_is_answered_neither_by_number_nor_by_label(
    follower: Follower, publisher: Publisher
) -> None:
    followed(follower, publisher, 1)
    asked(follower, Action.LABEL, 1, "old")
    followed(follower, publisher, 2)
    publisher.overwrite(1)
    follower.run_once()
    status = follower.status()
    assert (serving(follower), status.resident, dict(status.labels), quarantined(follower)) == (2, (2,), {}, [1])
    with pytest.raises(UnknownLabelError):
        follower.replica.predict({"x": np.ones([1, 2], np.float32)}, label="old")
    with pytest.raises(UnknownVersionError):
        ask(follower, version=1)


def test_a_damaged_pinned_version_is_replaced_by_an_older_one_and_not_by_one_that_was_rolled_back(
    follower: Follower, publisher: Publisher
) -> None:
    followed(follower, publisher, 1, 2, 3)
    asked(follower, Action.PIN, 2)
    assert follower.status().resident == (2, 3)
    publisher.overwrite(2)
    follower.run_once()
    assert (serving(follower), follower.status().pinned) == (1, 2)
    with pytest.raises(SyncError, match="version 2 of model 'm' is quarantined"):
        asked(follower, Action.PIN, 2)


def test_a_version_that_has_the_damaged_file_too_does_not_take_its_place(
    follower: Follower, publisher: Publisher
) -> None:
    followed(follower, publisher, 1, 2)
    publisher.publish(3, tensors=values(2, captured()))  # a hard link to the file of version 2
    follower.run_once()
    assert follower.status().resident == (3, 2)
    publisher.overwrite(3)
    follower.run_once()
    assert (serving(follower), quarantined(follower), follower.status().resident) == (1, [2, 3], (1,))


def test_a_version_that_is_suspected_is_examined_and_its_file_is_not_believed_any_more(
    follower: Follower, publisher: Publisher
) -> None:
    followed(follower, publisher, 1)
    publisher.publish(2, finite=True)  # in memory it has a seal
    follower.run_once()
    follower.replica.suspects.update(follower.replica.residents)
    follower.run_once()
    assert (serving(follower), quarantined(follower)) == (2, [])
    publisher.overwrite(2, unseen=True)
    follower.replica.suspects.add(follower.replica.serving())
    follower.run_once()
    assert (serving(follower), quarantined(follower), proven(*ask(follower))) == (1, [2], True)
    with pytest.raises(SyncError, match="version 2 of model 'm' is quarantined"):
        asked(follower, Action.PIN, 2)
    assert (serving(follower), proven(*ask(follower))) == (1, True)


# Models of which no version can be used -------------------------------------------------------------------------------


REASON = re.compile("version 7 is quarantined: parameters of .*: expected finite values")


@pytest.fixture
def bad(running: Running, publisher: Publisher) -> Running:
    """Model `m`, whose first version is quarantined."""
    publisher.publish_bad(7)
    with pytest.raises(grpc.RpcError):
        synced(running)
    return running


def test_every_protocol_says_why_no_version_serves(bad: Running, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{bad.port}"
    assert main(["predict", "m", "--input", "x=[[1, 2]]", "--server", address]) == 1
    said = {
        "gRPC": refused(bad.prediction_service.Predict, request())[1],
        "KServe": refused(method(bad, "ModelInfer"), negated())[1],
        "REST": call(bad.rest_port, "POST", "/v1/models/m:predict", {"instances": [[1, 2]]}).error,
        "health": call(bad.rest_port, "GET", "/healthz").error,
        "command": capsys.readouterr().err,
    }
    assert {name: REASON.search(text) is not None for name, text in said.items()} == dict.fromkeys(said, True), said
