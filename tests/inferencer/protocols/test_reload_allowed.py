"""Below which folders the stores are that callers may have served, where the port is open to others and where not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from inferencer.protocols.tfs.reload import Configuring, read
from inferencer.settings.settings import AnySettings, ModelSettings
from paramsync.kserve import open_inference_pb2 as kserve_pb2
from paramsync.rpc.addresses import is_loopback
from paramsync.rpc.tokens import Tokens
from tests.support.configurations import answers, apply, config, model
from tests.support.kserve import method
from tests.support.published import Publisher
from tests.support.running import LONG, Running, refused, synced

SECRET = "a-token-of-many-letters"
TOKENS = Tokens("PARAMSYNC_TOKEN", None, SECRET)
DENIED = grpc.StatusCode.PERMISSION_DENIED


@contextmanager
def serving(publisher: Publisher, **settings: Any) -> Iterator[Running]:
    publisher.publish(7)
    publisher.publish(8)
    running = Running(publisher.path, **settings)
    running.show(SECRET)
    try:
        synced(running)
        yield running
        running.drain()
    finally:
        running.close()


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
