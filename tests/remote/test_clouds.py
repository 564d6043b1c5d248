"""gs:// and az:// addresses by the real commands, and stores that allow few writes of one object."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paramsync import Follower, Publisher, Replica
from paramsync.cli.__main__ import main
from paramsync.remote import child
from paramsync.remote.bucket import Bucket
from paramsync.store.store import Store
from tests.support.commands import three_versions
from tests.support.gcs import Gcs
from tests.support.mirrors import Pair, same
from tests.support.object_stores import ObjectStore
from tests.support.programs import eventually
from tests.support.published import Witness

pytestmark = pytest.mark.slow


@pytest.fixture(params=["azurite", "google"])
def address(
    request: pytest.FixtureRequest,
    server: Callable[[str], ObjectStore],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    folder: str,
) -> str:
    """The address of a folder that programs find by their environment."""
    found = server(request.param)
    for variable, value in found.environments[0].items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(child, "_MEMORY", tmp_path)
    return f"{found.address}/{folder}"


def test_a_store_comes_back_from_any_cloud_as_it_went(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = three_versions(tmp_path / "source"), tmp_path / "target"
    assert main(["mirror", str(source), address, "--once"]) == 0
    assert main(["mirror", address, str(target), "--once"]) == 0
    assert main(["pin", address, "30"]) == 0
    assert capsys.readouterr().err == ""
    same(Store(source), Store(target))


def test_a_model_is_served_from_any_cloud(address: str) -> None:
    publisher = Publisher(address, Witness())
    with Follower(Replica("m", address), poll_seconds=3600) as follower:
        for step in (1, 2):
            publisher.publish(step, wait=True)

            def serves(step: int = step) -> bool:
                serving = follower.status().serving
                return serving is not None and serving.number == step

            eventually(serves, lambda: f"{follower.status()}")
        publisher.close()


@pytest.mark.parametrize("too_often", [2, 11])
def test_a_server_that_allows_few_writes_of_an_object_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], too_often: int
) -> None:
    source = three_versions(tmp_path / "source")
    with Gcs() as server:
        server.too_often = too_often
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        for _ in range(2):
            assert main(["mirror", str(source), f"{server.address}/m", "--once"]) == 0
        assert server.refused["m/state.json"] >= too_often
        assert main(["pin", f"{server.address}/m", "30"]) == 0
    assert capsys.readouterr().err == ""


def test_commits_are_coalesced_where_writes_of_an_object_are_few(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer 429 to a commit finds another version published meanwhile."""
    published = [1]

    def publish(name: str) -> None:
        if name == "m/state.json" and published[-1] < 12:
            published.append(published[-1] + 1)
            pair.publish(published[-1])

    with Gcs() as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        pair.bucket = Bucket(f"{server.address}/m")
        pair.publish(1)
        upload = pair.publisher()
        assert upload.run_once() is not None
        server.too_often, server.on_refused = 3, publish
        pair.publish(2)
        published.append(2)
        committed = []
        while (done := upload.run_once()) is not None:
            committed.append(done.version.number)
        assert committed[-1] == 12
        assert len(committed) <= 5
        follower = pair.follower("late")
        follower.run_once()
        same(pair.source, Store(pair.folder / "late"))
        follower.close()
