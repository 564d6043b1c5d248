"""Whoever asks a model of which no version can be used hears why, by each protocol."""

from __future__ import annotations

import re

import grpc
import pytest

from paramsync.cli.__main__ import main
from paramsync.errors import NotServingError
from paramsync.following.follower import Follower
from tests.support.http import call
from tests.support.kserve import method, negated
from tests.support.published import Publisher
from tests.support.running import Running, refused, request, synced

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


def test_the_reason_is_that_of_the_newest_and_goes_when_a_version_serves(
    follower: Follower, publisher: Publisher
) -> None:
    def said() -> str:
        with pytest.raises(NotServingError) as raised:
            follower.replica.take()
        return str(raised.value)

    follower.run_once()
    nothing = f"model 'm' is not serving: no version from store {publisher.path} serves yet"
    assert said() == f"{nothing}: its publisher has published nothing yet"
    publisher.publish_bad(1)
    publisher.publish_corrupt(2)
    follower.run_once()
    assert "serves yet: version 2 is quarantined: " in said()
    publisher.publish_bad(3)
    follower.run_once()
    assert re.search("serves yet: version 3 is quarantined: .*: expected finite values", said())
    assert len(said()) < 1000
    publisher.publish(4)
    follower.run_once()
    assert follower.replica.take().version.number == 4
