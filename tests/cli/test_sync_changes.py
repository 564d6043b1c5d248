"""What operators change over real gRPC beside pins: fresh syncs, rollbacks, labels."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from inferencer.protocols.sync.trainer_client import follows
from inferencer.settings.settings import ModelSettings
from paramsync.publishing.publisher import Publisher as TrainersPublisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.rpc.client import Trainer
from paramsync.v1 import sync_pb2 as pb
from tests.support.published import GATED_OPS, PARAMETERS, Publisher, captured, saver_store
from tests.support.running import LONG, Running, refused, request, seen, synced

Code = grpc.StatusCode


def _predicted(running: Running, **spec: Any) -> list[float]:
    message = request()
    for name, value in spec.items():
        setattr(message.model_spec, name, value)
    return seen(running.prediction_service.Predict(message, timeout=LONG))


def test_a_rollback_serves_the_version_before_at_once_and_stays_there(served: Running, publisher: Publisher) -> None:
    publisher.publish(8)
    status = synced(served)[-1].status
    assert (status.rollback_to, status.rollback_served) == (7, True)
    status = served.sync.Rollback(pb.RollbackRequest(model="m", version=7), timeout=LONG)
    assert (status.serving.number, status.pinned) == (7, 7)
    assert _predicted(served) == [7.0] * PARAMETERS
    assert status.restores == 2  # nothing was restored for it
    publisher.publish(9)
    code, text = refused(lambda message, timeout: list(served.sync.Sync(message, timeout=timeout)), pb.SyncRequest())
    assert (code, "is pinned to version 7; unpin it" in text) == (Code.FAILED_PRECONDITION, True)
    assert served.sync.Unpin(pb.UnpinRequest(model="m"), timeout=LONG).pinned == 0
    assert synced(served)[-1].status.serving.number == 9


def test_a_label_names_a_version_for_requests_until_it_is_taken_away(served: Running, publisher: Publisher) -> None:
    status = served.sync.Label(pb.LabelRequest(model="m", label="stable", version=7), timeout=LONG)
    assert dict(status.labels) == {"stable": 7}
    for step in (8, 9, 10):
        publisher.publish(step)
        synced(served)
    assert _predicted(served, version_label="stable") == [7.0] * PARAMETERS
    assert _predicted(served) == [10.0] * PARAMETERS
    assert dict(served.sync.Unlabel(pb.UnlabelRequest(model="m", label="stable"), timeout=LONG).labels) == {}
    message = request()
    message.model_spec.version_label = "stable"
    assert refused(served.prediction_service.Predict, message)[0] is Code.NOT_FOUND
    code, text = refused(served.sync.Unlabel, pb.UnlabelRequest(model="m", label="stable"))
    assert (code, "stable" in text) == (Code.NOT_FOUND, True)


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (pb.LabelRequest(model="m", label="stable"), Code.INVALID_ARGUMENT, "expected the number of a version"),
        (pb.LabelRequest(model="m", version=7), Code.INVALID_ARGUMENT, "expected a name, such as stable"),
        (pb.LabelRequest(model="m", label="stable", version=6), Code.NOT_FOUND, "version 6"),
        (pb.LabelRequest(model="n", label="stable", version=7), Code.NOT_FOUND, "'n'"),
    ],
)
def test_a_label_that_cannot_be_given_says_why(
    message: pb.LabelRequest, code: grpc.StatusCode, words: str, served: Running
) -> None:
    found, text = refused(served.sync.Label, message)
    assert (found, words in text) == (code, True), text


def test_a_fresh_sync_has_the_trainer_publish_and_serves_that_version(tmp_path: Path) -> None:
    (tmp_path / "mounted").symlink_to(tmp_path / "m")  # the inferencer may know the store by another path
    with _trained(tmp_path / "m") as address, _served(tmp_path / "mounted", trainer=address) as running:
        before = synced(running)[-1].status.serving.number
        found = synced(running, fresh=True)
        assert [found[0].phase, found[-1].phase] == [pb.SyncProgress.PUBLISHING, pb.SyncProgress.DONE]
        assert found[-1].status.serving.number > before


@pytest.mark.parametrize("there", ["a publisher of its own", "a Saver's checkpoints", "nothing"])
def test_a_fresh_sync_whose_trainer_publishes_elsewhere_says_so_at_once_and_publishes_nothing(
    tmp_path: Path, publisher: Publisher, there: str
) -> None:
    store = tmp_path / "m"
    publisher.publish(1)
    publisher.close()
    if there != "a publisher of its own":
        shutil.rmtree(store)
    if there == "a Saver's checkpoints":
        saver_store(store, 1)
    with _trained(tmp_path / "other") as address, _served(store, trainer=address) as running:
        before = published_by(address)
        code, text = _refused_fresh(running)
        assert published_by(address) == before
    assert code is Code.FAILED_PRECONDITION
    assert f"the trainer at {address} publishes to {tmp_path / 'other'}" in text
    assert f"model 'm' is followed in {store}" in text
    assert "--trainer m=HOST:PORT" in text


def published_by(address: str) -> int:
    with Trainer(address) as trainer:
        return int(trainer.status().publishes)


@pytest.mark.parametrize("left_out", [None, "publisher.lock"])
def test_a_copy_of_a_store_is_taken_for_that_store(tmp_path: Path, left_out: str | None) -> None:
    with _trained(tmp_path / "m") as address, Trainer(address) as trainer:
        shutil.copytree(tmp_path / "m", tmp_path / "copy")
        if left_out is not None:
            (tmp_path / "copy" / left_out).unlink()
        trainer.publish()  # which the copy does not have yet
        assert follows(tmp_path / "copy", trainer.status())
        assert not follows(tmp_path / "nowhere", trainer.status())
        assert follows(tmp_path / "nowhere", pb.PublisherStatus(store="of an earlier release"))


def test_a_fresh_sync_without_a_trainer_or_with_a_version_is_refused(
    served: Running, tmp_path: Path, publisher: Publisher
) -> None:
    code, text = _refused_fresh(served)
    assert (code, "--trainer HOST:PORT" in text) == (Code.FAILED_PRECONDITION, True)
    assert _refused_fresh(served, version=7)[0] is Code.INVALID_ARGUMENT
    with _served(tmp_path / "m", trainer="127.0.0.1:1") as running:
        code, text = _refused_fresh(running)
    assert (code, "the trainer at 127.0.0.1:1 did not publish" in text) == (Code.FAILED_PRECONDITION, True)


def _refused_fresh(running: Running, **more: Any) -> tuple[grpc.StatusCode, str]:
    message = pb.SyncRequest(model="m", fresh=True, **more)
    return refused(lambda message, timeout: list(running.sync.Sync(message, timeout=timeout)), message)


def _served(store: Path, *, trainer: str) -> closing[Running]:
    return closing(Running(models=(ModelSettings(name="m", store=store, allowed=GATED_OPS, trainer=trainer),)))


@contextmanager
def _trained(store: Path) -> Iterator[str]:
    """A trainer that takes steps, and publishes when it is asked to; yields its address."""
    schedule = PublishSchedule(at_start=False, at_end=False)
    over = threading.Event()
    with TrainersPublisher(store, captured(), schedule=schedule, on_error="raise", control_port=0) as publisher:
        publisher.publish(1, wait=True)

        def steps() -> None:
            for step in itertools.count(2):
                if over.wait(0.001):
                    return
                publisher.publish_if_due(step)

        thread = threading.Thread(target=steps)
        thread.start()
        try:
            assert publisher.control is not None
            yield publisher.control
        finally:
            over.set()
            thread.join(LONG)


def test_a_watch_of_all_models_hears_of_those_that_are_added_later(served: Running, tmp_path: Path) -> None:
    call = served.sync.Watch(pb.WatchRequest(), timeout=LONG)
    call.initial_metadata()
    other = Publisher(tmp_path / "other")
    other.publish(21)
    models = (*served.settings.models, ModelSettings(name="other", store=other.path, allowed=GATED_OPS))
    served.call(lambda: served.server.apply(models))
    other.publish(22)
    list(served.sync.Sync(pb.SyncRequest(model="other"), timeout=LONG))
    served.drain()
    assert ("other", 22, pb.Event.SWAPPED) in [(one.model, one.version.number, one.kind) for one in call]
    other.close()
