"""SavedModels are captured without their weights, under the keys of their checkpoints; what is none is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError, UnsafeGraphError
from paramsync.graphs.capturing import capture
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from tests.support.captured import Encoder, Scaler, answers, mlp, saved_parameters


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


def test_what_was_loaded_from_a_saved_model_is_captured_with_its_live_variables(tmp_path: Path) -> None:
    module = Encoder()
    tf.saved_model.save(module, tmp_path / "saved", signatures={"score": module.score})
    captured = capture(tf.saved_model.load(tmp_path / "saved"))
    values = [variable.read_value() for variable in captured.variables]
    x = tf.random.normal((2, 4))
    found = captured.graph(values, {"given": x}, signature="score")
    np.testing.assert_array_equal(found["output_0"], module.score(x))


class Careless(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((), tf.string)])
    def __call__(self, path: tf.Tensor) -> tf.Tensor:
        return tf.io.read_file(path)


def test_a_saved_model_that_reads_files_is_refused_unless_the_op_is_allowed(tmp_path: Path) -> None:
    module = Careless()
    tf.saved_model.save(module, tmp_path, signatures=module.__call__)
    with pytest.raises(UnsafeGraphError, match="ReadFile"):
        capture(tmp_path)
    assert capture(tmp_path, allowed=["ReadFile"]).graph.parameters == ()


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 100], ids=["none", "empty", "garbage"])
def test_a_folder_that_is_no_saved_model_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises(GraphError, match=r"saved_model\.pb|found those tagged|found none"):
        capture(tmp_path)


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


def test_the_message_in_a_saved_model_is_not_its_folder(tmp_path: Path) -> None:
    tf.saved_model.save(Scaler(), tmp_path)
    with pytest.raises(GraphError, match=r"expected a SavedModel, found no saved_model\.pb"):
        capture(tmp_path / "saved_model.pb")
