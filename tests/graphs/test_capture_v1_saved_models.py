"""SavedModels of TensorFlow 1 give all their signatures over one set of parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.saved_models import SavedModel, is_v1, parsed_saved_model
from tests.support.v1_captured import ONES, answer, names, saved_graph

v1 = tf.compat.v1


def saved_with_signatures(directory: Path) -> None:
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


def test_a_saved_model_of_tensorflow_1_gives_all_its_signatures_over_one_set_of_parameters(tmp_path: Path) -> None:
    saved_with_signatures(tmp_path / "exported")
    assert is_v1(parsed_saved_model(tmp_path / "exported"))
    graph = Graph.from_bytes(saved_graph(tmp_path / "exported").to_bytes())
    assert names(graph) == ["encoder", "head"]
    assert {name: sorted(one.inputs) for name, one in graph.signatures.items()} == {
        "whole": ["image", "unused"],
        "encode": ["image"],
        "head": ["features"],
        "sums": ["r_row_splits", "r_values", "s_dense_shape", "s_indices", "s_values"],
    }
    prefix = tmp_path / "exported" / "variables" / "variables"
    features = answer(graph, prefix, {"image": ONES}, "encode")["features"]
    np.testing.assert_array_equal(features, [[4.0] * 3])
    np.testing.assert_array_equal(answer(graph, prefix, {"features": features}, "head")["logits"], [[12.0] * 2])
    whole = answer(graph, prefix, {"image": ONES, "unused": np.float32(0)}, "whole")
    np.testing.assert_array_equal(whole["logits"], [[12.0] * 2])


def test_inputs_and_outputs_are_called_as_in_the_saved_model_whatever_nodes_were_added(tmp_path: Path) -> None:
    saved_with_signatures(tmp_path / "exported")
    signatures = saved_graph(tmp_path / "exported").signatures
    whole, encode, head = (signatures[name] for name in ("whole", "encode", "head"))
    assert whole.inputs["image"].tensor == encode.inputs["image"].tensor == "x:0"
    assert head.inputs["features"].tensor == encode.outputs["features"].tensor == "MatMul:0"
    assert head.outputs["logits"].tensor == whole.outputs["logits"].tensor == "MatMul_1:0"


def test_only_the_signatures_asked_for_are_captured(tmp_path: Path) -> None:
    saved_with_signatures(tmp_path / "exported")
    graph = saved_graph(tmp_path / "exported", signatures=["encode"])
    assert (names(graph), list(graph.signatures)) == (["encoder"], ["encode"])
    with pytest.raises(GraphError, match="expected signature decode, found encode, head, sums, whole"):
        saved_graph(tmp_path / "exported", signatures=["decode"])


def test_a_saved_model_without_a_graph_that_predicts_says_which_there_are(tmp_path: Path) -> None:
    saved_with_signatures(tmp_path / "exported")
    saved = parsed_saved_model(tmp_path / "exported")
    saved.meta_graphs[0].meta_info_def.tags.append("gpu")
    (tmp_path / "exported" / "saved_model.pb").write_bytes(saved.SerializeToString())
    with pytest.raises(GraphError, match="expected a graph tagged serve, found those tagged serve, gpu"):
        saved_graph(tmp_path / "exported")


def test_what_is_no_saved_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"found no saved_model\.pb"):
        parsed_saved_model(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"\xff" * 9)
    with pytest.raises(GraphError, match="not a readable SavedModel"):
        parsed_saved_model(tmp_path)


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


def test_a_saved_model_of_tensorflow_2_is_told_apart(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path))
    assert not is_v1(parsed_saved_model(tmp_path))
