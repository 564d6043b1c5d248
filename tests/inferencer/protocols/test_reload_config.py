"""HandleReloadConfigRequest as stock clients call it: models come and go, are pinned and labelled, all or nothing."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tensorflow_serving.apis import get_model_status_pb2, model_management_pb2

from inferencer.protocols.tfs.reload import read
from inferencer.settings.settings import ModelSettings
from paramsync.errors import RequestError
from paramsync.v1 import sync_pb2 as pb
from tests.support.configurations import answers, apply, config, model
from tests.support.programs import eventually
from tests.support.published import Publisher
from tests.support.running import LONG, Running, refused, synced

Code = grpc.StatusCode
INVALID = Code.INVALID_ARGUMENT


@pytest.fixture
def three(served: Running, publisher: Publisher) -> Running:
    """Model `m` with versions 7, 8 and 9 published, of which 9 serves."""
    for number in (8, 9):
        publisher.publish(number)
        synced(served)
    return served


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Path]:
    """The store of another model, with version 21."""
    publisher = Publisher(tmp_path / "other")
    publisher.publish(21)
    yield publisher.path
    publisher.close()


@contextmanager
def restarted(*stores: Path, **settings: Any) -> Iterator[Running]:
    running = Running(*stores, **settings)
    try:
        yield running
        running.drain()
    finally:
        running.close()


def links(pid: int) -> Iterator[str]:
    """What a process has open."""
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            yield str(file.readlink())


def told(running: Running) -> dict[str, Any]:
    return {one.name: (one.status().pinned, dict(one.status().labels)) for one in running.server.models}


@pytest.mark.slow
def test_a_model_that_is_taken_away_leaves_no_file_open_though_nobody_collects_cycles(
    three: Running, tmp_path: Path, other: Path
) -> None:
    pids = [os.getpid(), *(status.pid for status in three.server._fleet.workers.statuses() if status.pid)]

    def opened() -> list[list[str]]:
        """The graphs, and the data files of the other model, that the supervisor and its worker have open."""
        return [sorted(link for link in links(pid) if link.startswith((str(other), "/memfd:graph"))) for pid in pids]

    gc.collect()
    gc.disable()
    try:
        before = opened()
        apply(three, model(tmp_path / "m"), model(other, name="new", latest=2))
        assert answers(three, name="new") == 21
        assert all(len(now) > len(then) for now, then in zip(opened(), before, strict=True))
        apply(three, model(tmp_path / "m"))
        eventually(lambda: opened() == before, lambda: f"{before}, found {opened()}")
    finally:
        gc.enable()


def test_a_specific_version_is_pinned_and_the_latest_followed_again(
    three: Running, tmp_path: Path, publisher: Publisher
) -> None:
    apply(three, model(tmp_path / "m", specific=(7,)))
    publisher.publish(10)
    assert (answers(three), told(three)["m"][0]) == (7, 7)
    apply(three, model(tmp_path / "m"))
    synced(three)
    assert (answers(three), told(three)["m"][0]) == (10, None)


def test_of_several_specific_versions_the_highest_serves_and_the_others_can_be_asked_for(
    three: Running, tmp_path: Path
) -> None:
    apply(three, model(tmp_path / "m", specific=(9, 7, 8), labels={"stable": 8}))
    assert [answers(three, version=number) for number in (7, 8, 9)] == [7, 8, 9]
    assert (answers(three), answers(three, label="stable")) == (9, 8)
    assert told(three)["m"] == (9, {"stable": 8})  # what a configuration did not say, operators do not read
    assert [(one.resident, dict(one.labels)) for one in three.sync.GetStatus(pb.GetStatusRequest()).models] == [
        ([9, 8, 7], {"stable": 8})
    ]
    again = three.server.models.follower("m").status().restores
    three.sync.Unlabel(pb.UnlabelRequest(model="m", label="stable"), timeout=LONG)
    assert [answers(three, version=number) for number in (7, 8, 9)] == [7, 8, 9]
    apply(three, model(tmp_path / "m", specific=(9, 7, 8)))
    assert three.server.models.follower("m").status().restores == again
    apply(three, model(tmp_path / "m", specific=(8,)))
    assert (answers(three), told(three)["m"]) == (8, (8, {}))
    assert three.server.models.follower("m").status().resident == (8, 9)


def test_specific_versions_stay_in_memory_over_a_restart_until_operators_unpin(
    tmp_path: Path, publisher: Publisher
) -> None:
    for number in (7, 8, 9, 10):
        publisher.publish(number)
    with restarted(tmp_path / "m", state=tmp_path / "state") as one:
        apply(one, model(tmp_path / "m", specific=(7, 8, 9)))
    with restarted(tmp_path / "m", state=tmp_path / "state") as one:
        synced(one, version=9)
        eventually(lambda: one.server.models.find("m").status().resident == (9, 7, 8), lambda: "all three")
        assert [answers(one, version=number) for number in (7, 8)] == [7, 8]
        assert "7" not in (tmp_path / "state" / "m.json").read_text().partition("labels")[2].partition("}")[0]
        one.sync.Unpin(pb.UnpinRequest(model="m"), timeout=LONG)
        eventually(lambda: one.server.models.find("m").status().resident == (10, 9), lambda: "two")


def test_labels_are_set_moved_and_taken_away(three: Running, tmp_path: Path) -> None:
    apply(three, model(tmp_path / "m", labels={"stable": 7, "canary": 9}))
    assert (answers(three, label="stable"), answers(three, label="canary"), answers(three)) == (7, 9, 9)
    apply(three, model(tmp_path / "m", labels={"stable": 8}))
    assert answers(three, label="stable") == 8
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = "m"
    message.model_spec.version_label = "stable"
    found = three.model_service.GetModelStatus(message, timeout=LONG).model_version_status
    assert [one.version for one in found] == [8]
    message.model_spec.version_label = "canary"
    code, text = refused(three.model_service.GetModelStatus, message)
    assert (code, text) == (Code.NOT_FOUND, "label 'canary' of model 'm' is not there; there are: 'stable'")


def test_a_store_that_is_lost_keeps_no_other_model_from_coming_or_going(
    three: Running, tmp_path: Path, other: Path
) -> None:
    (tmp_path / "m").rename(tmp_path / "away")
    os.mkfifo(tmp_path / "m")
    apply(three, model(tmp_path / "m"), model(other, name="new"))
    assert (answers(three), answers(three, name="new")) == (9, 21)
    apply(three, model(tmp_path / "m"))
    assert list(told(three)) == ["m"]
    (tmp_path / "m").unlink()
    (tmp_path / "away").rename(tmp_path / "m")


EMPTY = model_management_pb2.ReloadConfigRequest()
STORE = "/dev"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (EMPTY, "config: expected a model_config_list, found none"),
        (config(model(STORE, name="")), "config of model '': expected a name of letters"),
        (config(model(STORE, name="a/b")), "config of model 'a/b': expected a name of letters"),
        (config(model(STORE, name="n" * 201)), "expected a name of at most 200 bytes, as a URL has them, found 201 in"),
        (config(model(STORE, name="\N{GREEK SMALL LETTER ALPHA}" * 34)), "expected a name of at most 200 bytes"),
        (config(model(STORE, labels={f"n{at}": 8 for at in range(257)})), "expected at most 256 labels, found 257"),
        (config(model(STORE), model(STORE)), "config of model 'm': expected one, found 2"),
        (
            config(model("relative", name="n")),
            "config of model 'n', base_path: expected an absolute path, found 'relative'",
        ),
        (config(model("", name="n")), "base_path: expected an absolute path, found ''"),
        (config(model("/nowhere/at/all")), "base_path: expected a directory that is there, found '/nowhere/at/all'"),
        (config(model("/" + "n" * 5000)), "base_path: expected a directory that is there"),
        (config(model("/etc/passwd", name="n")), "base_path: expected a directory that is there, found '/etc/passwd'"),
        (config(model(STORE, model_platform="caffe")), "model_platform: expected tensorflow, found 'caffe'"),
        (config(model(STORE, specific=())), "model_version_policy: expected from 1 to 64 specific versions, found 0"),
        (config(model(STORE, latest=65)), "num_versions: expected at most 64, found 65"),
        (config(model(STORE, labels={"": 8})), "version_labels: expected a name, such as stable, found none"),
    ],
    ids=[str(at) for at in range(16)],
)
def test_a_wrong_configuration_is_refused(message: model_management_pb2.ReloadConfigRequest, text: str) -> None:
    with pytest.raises(RequestError) as raised:
        read(message.config, [ModelSettings(name="m", store=Path(STORE))], {}, None)
    assert text in str(raised.value)


def test_after_a_refused_configuration_nothing_has_changed(three: Running, tmp_path: Path) -> None:
    store = tmp_path / "m"
    apply(three, model(store, labels={"stable": 8}))
    before = told(three)
    for wrong, text in (
        (model(store, name=""), "config of model '': expected a name of letters"),
        (model(store, specific=(99,)), "version 99 of store"),
        (model(store, labels={"stable": 8, "canary": 99}), "version 99 of store"),
        (model(store, specific=(8, 99)), "version 99 of store"),
        (model(store, specific=(-1,)), "version -1 of store"),
    ):
        code, details = refused(three.model_service.HandleReloadConfigRequest, config(wrong))
        assert (code, text in details) == (Code.INVALID_ARGUMENT, True), details
        assert told(three) == before
        assert (answers(three), answers(three, label="stable")) == (9, 8)
