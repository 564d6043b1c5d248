"""What one directory, link, pipe or refused request must not do to everything else that a follower serves."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.sources.opening import open_source
from paramsync.sources.saved_models import highest
from paramsync.v1 import sync_pb2 as pb
from tests.support.followers import LONG, SILENT, quarantined, serving
from tests.support.inferencers import Process
from tests.support.programs import eventually
from tests.support.published import Publisher, Witness, ask, follower_of
from tests.support.running import Running, refused, request, synced
from tests.support.stores import Scaled, saved_by_v1, saved_by_v2, saved_with_words


def variables_are_a_file(version: Path) -> None:
    shutil.rmtree(version / "variables")
    (version / "variables").write_text("")


def variables_lead_to_themselves(version: Path) -> None:
    shutil.rmtree(version / "variables")
    (version / "variables").symlink_to("variables")


def data_leads_nowhere(version: Path) -> None:
    [data] = (version / "variables").glob("*.data-*")
    data.unlink()
    data.symlink_to("gone")


def leads_to_itself(version: Path) -> None:
    shutil.rmtree(version)
    version.symlink_to(version.name)


@pytest.mark.parametrize(
    "harm", [variables_are_a_file, variables_lead_to_themselves, data_leads_nowhere, leads_to_itself]
)
def test_a_numbered_directory_that_cannot_be_looked_into_keeps_no_other_from_serving(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    for number in (1, 2, 3):
        saved_by_v1(tmp_path / str(number), number)
    harm(tmp_path / "2")
    follower = Follower(Replica("m", tmp_path))
    follower.run_once()
    assert (serving(follower), follower.status().reason) == (3, "")


def test_a_store_that_cannot_be_asked_for_is_a_problem_that_is_told(tmp_path: Path) -> None:
    store = tmp_path / ("m" * 300)  # no such name can be: looking for it is an error as a missing permission is
    source = open_source(store)
    assert source.look().problem is not None
    source.bell(lambda: None).arm()


def test_of_many_directories_the_last_few_are_watched(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).symlink_to(f"elsewhere-{number}")
    assert highest(tmp_path) == [tmp_path / "elsewhere-98", tmp_path / "elsewhere-99"]


@pytest.mark.parametrize("what", ["version", "input"])
def test_a_refused_request_keeps_no_version_in_memory(served: Running, publisher: Publisher, what: str) -> None:
    message = request(version=999) if what == "version" else request(y=np.ones([1, 2], np.float32))
    gc.collect()
    gc.disable()
    try:
        refused(served.prediction_service.Predict, message)
        for step in (20, 21, 22):
            publisher.publish(step)
            synced(served)
        [follower] = served.server.models.followers()

        def none_leaves() -> bool:
            follower.notify()
            return not follower.status().leaving

        eventually(none_leaves, lambda: f"{follower.status().leaving} to leave")
    finally:
        gc.enable()


def test_what_is_part_of_something_else_serves_where_that_fails_after_the_swap(publisher: Publisher) -> None:
    def fails() -> None:
        raise ValueError("the rest of it")

    follower = follower_of(publisher.path)
    follower.replica.on_swap(lambda resident: fails)
    publisher.publish(1)
    follower.run_once()
    assert (serving(follower), ask(follower)[1]) == (1, 1)


def test_what_serves_is_in_quarantine_no_more_once_its_files_can_be_read_again(tmp_path: Path) -> None:
    saved_by_v1(tmp_path / "1", 1.0)
    saved_by_v1(tmp_path / "2", 1.0)
    follower = Follower(Replica("m", tmp_path))
    follower.run_once()
    (tmp_path / "2" / "variables").rename(tmp_path / "aside")
    (tmp_path / "2" / "variables").symlink_to("variables")
    follower.run_once()
    (tmp_path / "2" / "variables").unlink()
    (tmp_path / "aside").rename(tmp_path / "2" / "variables")
    follower.run_once()
    assert (serving(follower), quarantined(follower)) == (2, [])


@pytest.mark.parametrize("label", ["", "x" * 1000, "\x1b[31mred", "two\nlines"])
def test_a_label_that_no_status_could_show_is_refused(served: Running, label: str) -> None:
    code, text = refused(served.sync.Label, pb.LabelRequest(model="m", label=label, version=7))
    assert (code, "label: expected a name" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


class Endless(Witness):
    """Never ends on zeros."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        rounds = tf.while_loop(lambda _: tf.reduce_sum(x) < 1.0, lambda at: [at + 1], [0])
        with tf.control_dependencies(rounds):
            return {"seen": tf.stack([part[0, 0] for part in self.parts])}


@pytest.mark.promise
@pytest.mark.slow
def test_a_model_whose_first_look_never_ends_does_not_keep_the_server_from_ending(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(1)
    other = Publisher(tmp_path / "endless")
    other.publish(1, kind=Endless)
    process = Process.of(publisher.path)
    try:
        process.connect()
        message = model_management_pb2.ReloadConfigRequest()
        for name, path in (("m", publisher.path), ("endless", other.path)):
            message.config.model_config_list.config.add(name=name, base_path=str(path))
        stub = model_service_pb2_grpc.ModelServiceStub(process.predictions)
        code, _ = refused(stub.HandleReloadConfigRequest, message, timeout=3.0)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert process.end(signal.SIGTERM) == 0
    finally:
        process.close()
        other.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbered SavedModels of each kind."""
    path = tmp_path_factory.mktemp("written")
    (path / "list").write_text("a\nb")
    for number in (1, 2):
        saved_by_v2(path / "variables" / str(number), number)
        saved_with_words(path / "assets" / str(number), path / "list")
    return path


@pytest.fixture
def looked(tmp_path: Path) -> Iterator[list[Follower]]:
    followers: list[Follower] = []
    yield followers
    for one in followers:
        one.close()


def look(path: Path, looked: list[Follower], graph: Path | None = None) -> Follower:
    """One that has done its first look in time."""
    follower = Follower(Replica("m", path, graph=graph), poll_seconds=3600)
    looked.append(follower)
    follower.start(SILENT)
    follower.looked.result(LONG)
    return follower


PIECES = [
    "assets/2/assets/list",
    "assets/2/assets",
    "assets/2/saved_model.pb",
    "variables/2/variables/variables.index",
    "variables/2/variables/variables.data-00000-of-00001",
    "variables/2/variables",
    "variables/2",
]


@pytest.mark.parametrize("piece", PIECES)
def test_the_saved_model_before_serves(written: Path, tmp_path: Path, looked: list[Follower], piece: str) -> None:
    base = tmp_path / piece.split("/")[0]
    shutil.copytree(written / base.name, base)
    moved = tmp_path / piece
    moved.rename(tmp_path / "away")
    os.mkfifo(moved)
    assert serving(look(base, looked)) == 1


@pytest.mark.parametrize("piece", ["graph", "graph/saved_model.pb"])
def test_a_graph_that_was_given_is_refused(tmp_path: Path, looked: list[Follower], piece: str) -> None:
    tf.train.CheckpointManager(tf.train.Checkpoint(net=Scaled()), str(tmp_path / "store"), None).save(1)
    (tmp_path / piece).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / piece)
    (found,) = look(tmp_path / "store", looked, tmp_path / "graph").status().quarantined
    assert "expected a regular file" in found.reason


def test_a_base_that_is_a_pipe_is_told(tmp_path: Path, looked: list[Follower]) -> None:
    os.mkfifo(tmp_path / "base")
    assert "expected a directory" in (look(tmp_path / "base", looked).status().reason or "")
