"""HandleReloadConfigRequest as stock clients call it: models come and go, are pinned and labelled."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tensorflow_serving.apis import get_model_status_pb2, model_management_pb2

from inferencer.protocols.tfs.reload import Configuring, read
from inferencer.settings.settings import AnySettings, ModelSettings
from paramsync.errors import RequestError
from paramsync.kserve import open_inference_pb2 as kserve_pb2
from paramsync.rpc.addresses import is_loopback
from paramsync.rpc.tokens import Tokens
from paramsync.v1 import sync_pb2 as pb
from tests.support.configurations import answers, apply, config, model
from tests.support.kserve import method
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
    with closing(Running(tmp_path / "m", state=tmp_path / "state")) as one:
        apply(one, model(tmp_path / "m", specific=(7, 8, 9)))
    with closing(Running(tmp_path / "m", state=tmp_path / "state")) as one:
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


SECRET = "a-token-of-many-letters"
TOKENS = Tokens("PARAMSYNC_TOKEN", None, SECRET)
DENIED = grpc.StatusCode.PERMISSION_DENIED


@contextmanager
def serving(publisher: Publisher, **settings: Any) -> Iterator[Running]:
    publisher.publish(7)
    publisher.publish(8)
    with closing(Running(publisher.path, **settings)) as running:
        running.show(SECRET)
        synced(running)
        yield running


def reload(running: Running, *models: Any) -> tuple[grpc.StatusCode, str]:
    return refused(running.model_service.HandleReloadConfigRequest, config(*models))


def test_without_roots_others_have_only_models_served_that_are(publisher: Publisher) -> None:
    with serving(publisher, host="0.0.0.0", tokens=TOKENS) as running:
        code, text = reload(running, model("/etc", name="n"))
        assert (code, "a folder that --reload-root DIR names to the inferencer" in text) == (DENIED, True), text
        apply(running, model(publisher.path, specific=(7,)))
        assert answers(running) == 7


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_only_stores_below_the_roots_come_to_be_served(publisher: Publisher, tmp_path: Path, host: str) -> None:
    roots = tmp_path / "roots"
    stores = [Publisher(path) for path in (roots / "a" / "store", tmp_path / "roots-not", tmp_path / "outside")]
    for number, store in enumerate(stores, 21):
        store.publish(number)
    (roots / "link").symlink_to(tmp_path / "outside")
    (roots / "loop").symlink_to(roots / "loop")
    (tmp_path / "way in").symlink_to(roots / "a")
    (tmp_path / "other root").mkdir()
    with serving(publisher, host=host, tokens=TOKENS, reload_roots=(tmp_path / "other root", roots)) as running:
        known = model(publisher.path)  # which was said by who started it
        outside = [
            "roots-not",
            "outside",
            "roots/link",
            "roots/link/../outside",
            "roots/../outside",
            "roots/loop",
            "none",
        ]
        for path in ["/etc", "/", *(f"{tmp_path}/{name}" for name in outside)]:
            for wrong in (model(path, name="new"), model(path)):
                code, text = reload(running, *([known] if wrong.name == "new" else []), wrong)
                assert code is DENIED, (path, text)
                assert f"expected one below {tmp_path}/other root or {roots} (--reload-root)" in text
        assert [one.name for one in running.server.models] == ["m"]
        for good in (stores[0].path, roots / "a" / ".." / "a" / "store", tmp_path / "way in" / "store"):
            apply(running, known, model(good, name="new", specific=(21,)))
            assert (answers(running), answers(running, name="new")) == (8, 21)
        apply(running, model(stores[0].path))
        assert answers(running) == 21
        load = kserve_pb2.RepositoryModelLoadRequest(model_name="m")
        method(running, "RepositoryModelLoad")(load, timeout=LONG)
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("no-such-host.invalid", False),
        ("", False),
    ],
)
def test_hosts_that_only_this_machine_can_call(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_models_that_callers_add_are_served_under_the_same_keys(tmp_path: Path) -> None:
    one, two = Path("one.pub"), Path("two.pub")
    known = ModelSettings(name="m", store=tmp_path, trust=(one,))
    wanted = config(model(tmp_path), model(tmp_path, name="n")).config
    plan = read(wanted, [known], {}, None, trust=(one, two))
    assert [settings.trust for settings in plan.models if isinstance(settings, ModelSettings)] == [(one,), (one, two)]
    (tmp_path / "other").mkdir()
    (moved,) = read(config(model(tmp_path / "other")).config, [known], {}, None, trust=(one, two)).models
    assert moved == ModelSettings(name="m", store=tmp_path / "other", trust=(one,))


def test_models_that_a_server_begins_without_are_served_under_its_keys(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    served: list[AnySettings] = []

    async def serve(models: Sequence[AnySettings], changes: Any) -> None:
        served.extend(models)

    asyncio.run(Configuring([], serve, trust=(Path("key.pub"),)).apply(config(model(tmp_path / "m")).config))
    assert served == [ModelSettings(name="m", store=tmp_path / "m", trust=(Path("key.pub"),))]
