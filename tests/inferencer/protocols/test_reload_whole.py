"""A configuration is in place as a whole or not at all, and changes nothing that it does not name."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from tensorflow_serving.apis import model_service_pb2_grpc

from inferencer.settings.settings import ConnectionSettings
from paramsync.following.operator_requests import Action
from paramsync.status import Status
from paramsync.v1 import sync_pb2 as pb
from tests.inferencer.serving.test_metrics import parsed
from tests.inferencer.supervisor.test_registry import Times
from tests.inferencer.supervisor.test_registry import model as stored
from tests.support.configurations import answers, apply, config, model
from tests.support.http import call
from tests.support.programs import eventually
from tests.support.published import Doubled, Publisher
from tests.support.running import LONG, Running, refused, request, synced

Code = grpc.StatusCode


@pytest.fixture
def three(served: Running, publisher: Publisher) -> Running:
    """Model `m` with versions 7 to 9, of which 9 and 8 are in memory."""
    publisher.publish(8)
    synced(served)
    publisher.publish(9)
    synced(served)
    return served


@pytest.fixture
def bad(tmp_path: Path) -> Iterator[Publisher]:
    """Of a store whose only version cannot be used."""
    publisher = Publisher(tmp_path / "bad")
    publisher.publish_bad(31)
    yield publisher
    publisher.close()


def told(running: Running, name: str = "m") -> tuple[int | None, dict[str, int]]:
    status = running.server.models.find(name).status()
    return status.pinned, dict(status.labels)


def refuse(running: Running, *models: Any) -> tuple[Code, str]:
    return refused(running.model_service.HandleReloadConfigRequest, config(*models))


def while_restoring(running: Running, number: int, act: Callable[[], Future[Status]]) -> list[Future[Status]]:
    """Have something asked, once, in the middle of the restore of that version."""
    follower = running.server.models.follower("m")
    asked: list[Future[Status]] = []

    def wake() -> None:
        if follower.status().restoring == number and not asked:
            asked.append(act())

    follower.subscribe(wake)
    return asked


# What it does not name ------------------------------------------------------------------------------------------------


def test_what_operators_choose_while_a_configuration_is_refused_stays(three: Running, tmp_path: Path) -> None:
    follower = three.server.models.follower("m")
    asked = while_restoring(three, 7, lambda: follower.ask(Action.LABEL, 9, "mine"))
    pinned = while_restoring(three, 7, lambda: follower.ask(Action.PIN, 8))
    code, text = refuse(three, model(tmp_path / "m", labels={"theirs": 7, "wrong": 99}))
    assert (code, "version 99" in text) == (Code.INVALID_ARGUMENT, True)
    assert asked[0].result(LONG).labels["mine"] == 9
    assert pinned[0].result(LONG).pinned == 8
    assert told(three) == (8, {"mine": 9})
    assert (answers(three), answers(three, label="mine")) == (8, 9)


def test_a_configuration_takes_back_what_one_before_it_said_and_nothing_else(three: Running, tmp_path: Path) -> None:
    three.sync.Label(pb.LabelRequest(model="m", label="mine", version=9), timeout=LONG)
    apply(three, model(tmp_path / "m", specific=(8,), labels={"theirs": 8}))
    assert told(three) == (8, {"mine": 9, "theirs": 8})
    apply(three, model(tmp_path / "m"))
    assert told(three) == (None, {"mine": 9})
    three.sync.Pin(pb.PinRequest(model="m", version=8), timeout=LONG)
    apply(three, model(tmp_path / "m"))
    assert (told(three), answers(three)) == ((8, {"mine": 9}), 8)  # it says nothing of pins
    apply(three, model(tmp_path / "m", latest=0, labels={"mine": 8}))
    synced(three)
    assert (told(three), answers(three)) == ((None, {"mine": 8}), 9)


def test_whichever_worker_is_asked_knows_what_a_configuration_before_said(tmp_path: Path, publisher: Publisher) -> None:
    running = Running(tmp_path / "m", workers=2)
    publisher.publish(7)
    publisher.publish(8)
    synced(running)
    for _ in range(8):  # the kernel gives each connection to one of the two
        for wanted, so in ((model(tmp_path / "m", specific=(7,)), 7), (model(tmp_path / "m"), None)):
            with grpc.insecure_channel(f"127.0.0.1:{running.port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
                service = model_service_pb2_grpc.ModelServiceStub(channel)
                assert service.HandleReloadConfigRequest(config(wanted), timeout=LONG).status.error_code == 0
            assert told(running)[0] == so
    running.close()


def test_what_is_refused_changes_nothing_of_what_is_kept(tmp_path: Path, bad: Publisher, publisher: Publisher) -> None:
    publisher.publish(7)
    with closing(Running(tmp_path / "m", state=tmp_path / "state")) as running:
        synced(running)
        running.sync.Pin(pb.PinRequest(model="m", version=7), timeout=LONG)
        running.sync.Label(pb.LabelRequest(model="m", label="mine", version=7), timeout=LONG)
        kept = json.loads((tmp_path / "state" / "m.json").read_text())
        assert refuse(running, model(bad.path, specific=(31,), labels={"mine": 31}))[0] is Code.FAILED_PRECONDITION
        assert json.loads((tmp_path / "state" / "m.json").read_text()) == kept
        good = Publisher(tmp_path / "good")
        good.publish(3)
        apply(running, model(good.path, specific=(3,)))
        assert json.loads((tmp_path / "state" / "m.json").read_text())["pinned"] == 3
        good.close()


# What could not serve -------------------------------------------------------------------------------------------------


def test_a_model_whose_new_store_has_nothing_good_goes_on_serving_from_the_old_one(
    three: Running, tmp_path: Path, bad: Publisher
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "none" / "variables").mkdir(parents=True)
    (tmp_path / "none" / "saved_model.pb").write_bytes(b"x")
    wrong = {
        bad.path: "version 31 is quarantined",
        tmp_path / "empty": "no version",
        tmp_path / "none": "found one SavedModel",
    }
    for path, reason in wrong.items():
        code, text = refuse(three, model(path))
        assert (code, reason in text) == (Code.FAILED_PRECONDITION, True), text
        assert (answers(three), answers(three, version=8)) == (9, 8)
    three.sync.Pin(pb.PinRequest(model="m", version=8), timeout=LONG)  # it is followed as before


def test_what_a_trial_of_a_configuration_logs_and_counts_is_not_said_of_what_serves(
    three: Running, tmp_path: Path, bad: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "paramsync.follower")
    before = three.server.models.find("m").status()
    refuse(three, model(bad.path))
    bad.publish(32)
    (tmp_path / "none").mkdir()
    refuse(three, model(bad.path), model(tmp_path / "none", name="other", specific=(3,)))
    said = [text for text in caplog.messages if str(tmp_path / "bad") in text]
    assert [text for text in said if "version 31 is quarantined" in text]
    assert [text for text in caplog.messages if text.startswith("m: ")] == []
    assert [text for text in said if not text.startswith(f"m (new configuration on trial, store {bad.path}): ")] == []
    after = three.server.models.find("m").status()
    assert (after.quarantines, after.restores, after.swaps) == (before.quarantines, before.restores, before.swaps)
    assert parsed(call(three.rest_port, "GET", "/metrics").body)["paramsync_quarantines_total"] == {
        (("model", "m"),): 0
    }

    caplog.clear()
    apply(three, model(bad.path))  # what was tried serves from now on, and is spoken of by its name
    eventually(
        lambda: any(text.startswith("m: version 32 serves") for text in caplog.messages), lambda: str(caplog.messages)
    )
    bad.publish_bad(33)
    with pytest.raises(grpc.RpcError):
        synced(three)
    assert any(text.startswith("m: version 33 is quarantined") for text in caplog.messages), caplog.messages


def test_a_new_model_whose_only_version_is_bad_is_refused_and_leaves_nothing(
    three: Running, tmp_path: Path, bad: Publisher
) -> None:
    code, text = refuse(three, model(tmp_path / "m", specific=(8,)), model(bad.path, name="new"))
    assert (code, "'new' cannot serve: version 31 is quarantined" in text) == (Code.FAILED_PRECONDITION, True), text
    assert refused(three.prediction_service.Predict, request("new"))[0] is Code.NOT_FOUND
    assert (told(three), answers(three)) == ((None, {}), 9)
    bad.publish(32)
    apply(three, model(tmp_path / "m"), model(bad.path, name="new"))
    assert answers(three, name="new") == 32


def test_a_connection_that_would_not_fit_any_more_is_refused(three: Running, tmp_path: Path) -> None:
    publishers = [Publisher(tmp_path / name) for name in ("encoder", "head", "wrong")]
    for publisher, kind in zip(publishers, (Times, Times, Doubled), strict=True):
        publisher.publish(2, kind=kind)
    joined = ConnectionSettings(name="joined", first="encoder", second="head", inputs={"x": "y"})
    parts = [stored(one.path) for one in publishers[:2]]
    three.call(lambda: three.server.apply((*parts, joined)))

    def product() -> float:
        answer = three.prediction_service.Predict(request("joined"), timeout=LONG)
        return float(answer.outputs["y"].float_val[0])

    assert product() == 4.0
    names = [model(publishers[1].path, name="head"), model("", name="joined", model_platform="")]
    code, text = refuse(three, model(publishers[2].path, name="encoder"), *names)
    assert (code, "'joined' is not serving" in text) == (Code.FAILED_PRECONDITION, True), text
    assert product() == 4.0
    for one in publishers:
        one.close()
