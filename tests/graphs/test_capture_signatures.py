"""A signature that cannot be served keeps no other of its SavedModel from it, and whoever asks for it hears why."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf

from paramsync.cli.__main__ import main
from paramsync.errors import GraphError, UnfinishedError, UnsafeGraphError
from paramsync.graphs.capturing import capture
from paramsync.sources.opening import open_source
from paramsync.v1 import sync_pb2 as pb
from tests.support.running import LONG, LocalRunning, refused, request, synced
from tests.support.stores import saved_with_words

v1 = tf.compat.v1


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One signature that serves, one that counts, one that reads a file, one whose input is of another dtype."""
    path = tmp_path_factory.mktemp("several") / "m" / "1"
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        file = v1.placeholder(tf.string, [], name="file")
        weight = v1.get_variable("weight", initializer=2.0, use_resource=False)
        count = v1.get_variable("count", initializer=0.0, use_resource=False)
        lengths = tf.strings.length(v1.placeholder(tf.string, [None], name="words"))

        def signature(inputs: dict[str, tf.Tensor], y: tf.Tensor) -> Any:
            tensors = {name: v1.saved_model.build_tensor_info(one) for name, one in inputs.items()}
            return v1.saved_model.build_signature_def(tensors, {"y": v1.saved_model.build_tensor_info(y)})

        signatures = {
            "serving_default": signature({"x": x}, x * weight),
            "counted": signature({}, tf.identity(count)),
            "counts": signature({}, v1.assign_add(count, 1.0)),
            "reads": signature({"file": file}, tf.io.read_file(file)),
            "wrong": signature({"x": x}, lengths),
        }
        signatures["wrong"].inputs["x"].name = "words:0"  # which is said to be a float
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    return path


def test_the_others_serve_and_each_refused_one_has_its_reason(several: Path) -> None:
    graph = capture(several).graph
    assert set(graph.signatures) == {"serving_default", "counted"}
    assert set(graph.refused) == {"counts", "reads", "wrong"}
    assert "AssignAdd" in graph.refused["counts"]
    assert "--allow-op" in graph.refused["reads"]
    assert "expected string" in graph.refused["wrong"]
    assert set(capture(several, allowed=["ReadFile"]).graph.signatures) == {"serving_default", "counted", "reads"}


def test_who_names_signatures_gets_all_of_them_or_the_reason(several: Path) -> None:
    assert set(capture(several, signatures=["counted"]).graph.signatures) == {"counted"}
    with pytest.raises(GraphError, match="AssignAdd"):
        capture(several, signatures=["counted", "counts"])


def test_where_none_can_be_served_the_version_is_refused(several: Path, tmp_path: Path) -> None:
    class Reads(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([], tf.string, name="file")])
        def __call__(self, file: tf.Tensor) -> tf.Tensor:
            return tf.io.read_file(file)

    module = Reads()
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"one": module.__call__, "other": module.__call__})
    with pytest.raises(UnsafeGraphError, match="ReadFile"):
        capture(tmp_path / "1")


def test_a_version_serves_and_says_once_which_of_its_signatures_do_not(
    several: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    running = LocalRunning(several.parent)
    try:
        synced(running)
        synced(running)
        (status,) = running.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models
        assert set(status.not_served) == {"counts", "reads", "wrong"}
        assert "AssignAdd" in status.not_served["counts"]
        main(["status", "--inferencer", f"127.0.0.1:{running.control_port}", "--trainer", "127.0.0.1:1"])
        assert "m: signature counts is not served: " in " ".join(capsys.readouterr().out.split())
        answer = running.prediction_service.Predict(request(x=np.ones(2, np.float32)), timeout=LONG)
        assert list(answer.outputs["y"].float_val) == [2, 2]
        for signature in ("counts", "reads", "wrong"):
            message = request(x=np.ones(2, np.float32))
            message.model_spec.signature_name = signature
            code, text = refused(running.prediction_service.Predict, message)
            assert code == grpc.StatusCode.FAILED_PRECONDITION
            assert text.startswith(f"signature '{signature}' is not served: ")
            assert text.endswith("; there are: 'counted', 'serving_default'")
            assert len([one for one in caplog.records if f"'{signature}' is not served" in one.message]) == 1
        message.model_spec.signature_name = "other"
        _, text = refused(running.prediction_service.Predict, message)
        assert text == "signature 'other' does not exist; there are: 'counted', 'serving_default'"
    finally:
        running.drain()
        running.close()


def test_a_signature_whose_asset_has_not_come_yet_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("a\nb")
    saved_with_words(tmp_path / "base" / "1", tmp_path / "list")
    shutil.rmtree(tmp_path / "base" / "1" / "assets")
    source = open_source(tmp_path / "base")
    latest = source.look().latest
    assert latest is not None
    with pytest.raises(UnfinishedError, match="assets/list"):
        source.restore(latest, lambda progress: None)
