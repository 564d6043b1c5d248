"""SavedModels of TensorFlow 1 and 2 are captured under the keys of their checkpoints, all signatures that can serve."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf

from paramsync.cli.__main__ import main
from paramsync.errors import GraphError, UnfinishedError
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.saved_models import SavedModel, parsed_saved_model
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.sources.opening import open_source
from paramsync.v1 import sync_pb2 as pb
from tests.support.captured import ONES, Encoder, answer, answers, mlp, names, saved_graph, saved_parameters
from tests.support.running import LONG, Running, refused, request, synced
from tests.support.stores import saved_with_words

v1 = tf.compat.v1


def test_a_saved_model_is_captured_without_its_weights_under_the_keys_of_its_checkpoint(tmp_path: Path) -> None:
    module = Encoder()
    tf.saved_model.save(module, tmp_path / "saved", signatures={"encode": module.encode, "score": module.score})
    (tmp_path / "saved" / "variables").rename(tmp_path / "variables")
    captured = capture(tmp_path / "saved")
    assert captured.variables == ()
    x = tf.random.normal((2, 4))
    values = saved_parameters(tmp_path, captured.graph)
    np.testing.assert_array_equal(captured.graph(values, {"given": x}, signature="score")["output_0"], module.score(x))
    only = capture(str(tmp_path / "saved"), signatures=["encode"])
    assert set(only.graph.signatures) == {"encode"}
    assert len(only.graph.parameters) == 1
    with pytest.raises(GraphError, match=r"expected signature other, found encode, score"):
        capture(tmp_path / "saved", signatures=["other"])


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 100], ids=["none", "empty", "garbage"])
def test_a_folder_that_is_no_saved_model_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises(GraphError, match=r"saved_model\.pb|found those tagged|found none"):
        capture(tmp_path)


@pytest.mark.parametrize("name", ["saved_model.pb", "model.meta"])
def test_a_file_that_cannot_be_read_as_a_message_is_a_graph_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    ends: dict[str, Any] = {"inputs": ["x:0"], "outputs": ["y:0"]} if path.suffix == ".meta" else {}
    source = path if ends else tmp_path
    path.mkdir()
    with pytest.raises(GraphError, match=rf"{name}.*expected a regular file"):
        capture(source, **ends)
    path.rmdir()
    path.touch()
    os.truncate(path, 1 << 31)
    with pytest.raises(GraphError, match=rf"{name}.*expected at most \d+ bytes, found {1 << 31}"):
        capture(source, **ends)
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(GraphError, match=rf"{name}.*symbolic link"):
        capture(source, **ends)


def test_a_saved_model_beneath_a_path_that_is_too_long_is_a_graph_error(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"too long"):
        capture(tmp_path / ("x" * 300))


class Layered(tf.Module):
    """Modules in a list and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[Any] = [Encoder(), {"last": Encoder()}]

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": self.layers[0].score(x) + self.layers[1]["last"].score(x)}


def test_variables_in_lists_of_what_was_loaded_have_the_keys_of_its_checkpoint(tmp_path: Path) -> None:
    module = Layered()
    tf.saved_model.save(module, tmp_path, signatures=module.__call__)
    live, loaded = capture(module), capture(tf.saved_model.load(tmp_path))
    assert [one.name for one in loaded.graph.parameters] == [one.name for one in live.graph.parameters]
    x = tf.random.normal((2, 4))
    np.testing.assert_array_equal(answers(loaded, {"x": x})["y"], module(x)["y"])


def test_a_keras_model_that_was_saved_as_a_module_is_captured_with_the_keys_of_its_checkpoint(tmp_path: Path) -> None:
    model = mlp()
    tf.saved_model.save(model, tmp_path)
    graph = capture(tmp_path).graph
    (name,) = graph.signatures[DEFAULT_SIGNATURE].inputs
    x = tf.random.normal((3, *model.inputs[0].shape[1:]))
    (found,) = graph(saved_parameters(tmp_path, graph), {name: x}).values()
    np.testing.assert_array_equal(found, model(x))


# TensorFlow 1 ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One set of parameters, and a signature that computes the input of another one."""
    directory = tmp_path_factory.mktemp("signatures") / "exported"
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        unused = v1.placeholder(tf.float32, (), name="unused")
        features = tf.matmul(x, v1.get_variable("encoder", (4, 3), initializer=v1.ones_initializer()))
        logits = tf.matmul(features, v1.get_variable("head", (3, 2), initializer=v1.ones_initializer()))
        sparse = v1.sparse_placeholder(tf.float32, (None, 4), name="sparse")
        ragged = v1.ragged.placeholder(tf.float32, 1, (), name="ragged")
        sums = tf.sparse.reduce_sum(sparse, 1) + tf.reduce_sum(ragged, 1)
        session.run(v1.global_variables_initializer())
        predict = v1.saved_model.predict_signature_def
        info = v1.saved_model.build_tensor_info
        builder = v1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {
                "whole": predict({"image": x, "unused": unused}, {"logits": logits}),
                "encode": predict({"image": x}, {"features": features}),
                "head": predict({"features": features}, {"logits": logits}),
                "sums": v1.saved_model.build_signature_def(
                    {"s": info(sparse), "r": info(ragged)}, {"sums": info(sums)}, "predict"
                ),
            },
        )
        builder.save()
    return directory


def test_a_saved_model_of_tensorflow_1_gives_all_its_signatures_over_one_set_of_parameters(exported: Path) -> None:
    graph = Graph.from_bytes(saved_graph(exported).to_bytes())
    assert names(graph) == ["encoder", "head"]
    assert {name: sorted(one.inputs) for name, one in graph.signatures.items()} == {
        "whole": ["image", "unused"],
        "encode": ["image"],
        "head": ["features"],
        "sums": ["r_row_splits", "r_values", "s_dense_shape", "s_indices", "s_values"],
    }
    whole, encode, head = (graph.signatures[name] for name in ("whole", "encode", "head"))
    assert whole.inputs["image"].tensor == encode.inputs["image"].tensor == "x:0"
    assert head.inputs["features"].tensor == encode.outputs["features"].tensor == "MatMul:0"
    prefix = exported / "variables" / "variables"
    features = answer(graph, prefix, {"image": ONES}, "encode")["features"]
    np.testing.assert_array_equal(features, [[4.0] * 3])
    np.testing.assert_array_equal(answer(graph, prefix, {"features": features}, "head")["logits"], [[12.0] * 2])
    found = answer(graph, prefix, {"image": ONES, "unused": np.float32(0)}, "whole")
    np.testing.assert_array_equal(found["logits"], [[12.0] * 2])


def test_a_saved_model_without_a_graph_that_predicts_says_which_there_are(exported: Path, tmp_path: Path) -> None:
    saved = parsed_saved_model(exported)
    saved.meta_graphs[0].meta_info_def.tags.append("gpu")
    (tmp_path / "saved_model.pb").write_bytes(saved.SerializeToString())
    with pytest.raises(GraphError, match="expected a graph tagged serve, found those tagged serve, gpu"):
        saved_graph(tmp_path)


def test_a_saved_model_whose_functions_multiply_is_refused_in_no_time(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path))
    saved = parsed_saved_model(tmp_path)
    meta = saved.meta_graphs[0]
    del meta.graph_def.library.function[:]
    for level in range(9):  # each calls the one before a hundred times, and the innermost is empty
        function = meta.graph_def.library.function.add()
        function.signature.name = f"f{level}"
        for number in range(100 if level else 0):
            call = function.node_def.add(name=f"n{number}", op="PartitionedCall")
            call.attr["f"].func.name = f"f{level - 1}"
    meta.graph_def.node.add(name="restore", op="PartitionedCall").attr["f"].func.name = "f8"
    meta.saver_def.restore_op_name = "restore"
    (tmp_path / "saved_model.pb").write_bytes(saved.SerializeToString())
    with pytest.raises(GraphError, match="not a whole SavedModel: more than 200000 operations"):
        SavedModel(tmp_path).draft()


# Signatures that cannot be served -------------------------------------------------------------------------------------


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


def test_a_version_serves_and_says_which_of_its_signatures_do_not(
    several: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Running(several.parent)) as running:
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
        message.model_spec.signature_name = "other"
        _, text = refused(running.prediction_service.Predict, message)
        assert text == "signature 'other' does not exist; there are: 'counted', 'serving_default'"


def test_a_signature_whose_asset_has_not_come_yet_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("a\nb")
    saved_with_words(tmp_path / "base" / "1", tmp_path / "list")
    shutil.rmtree(tmp_path / "base" / "1" / "assets")
    source = open_source(tmp_path / "base")
    latest = source.look().latest
    assert latest is not None
    with pytest.raises(UnfinishedError, match="assets/list"):
        source.restore(latest, lambda progress: None)
