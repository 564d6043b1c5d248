"""A captured graph computes what its source computes, bit for bit, and names things as people and checkpoints do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from paramsync.bundle import Bundle
from paramsync.errors import GraphError, UnsafeGraphError
from paramsync.graphs.capture import Capture, capture
from paramsync.graphs.graph import DEFAULT_SIGNATURE, Graph
from paramsync.keys import OBJECT_GRAPH


def mlp(activation: str = "relu") -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8,), name="image"),
            keras.layers.Dense(6, activation=activation),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, name="logits"),
        ]
    )


def convolution() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((6, 6, 2)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dense(2)]
    )


def embedding() -> keras.Model:
    ids = keras.Input((5,), dtype="int32", name="ids")
    return keras.Model(ids, keras.layers.Dense(3)(keras.layers.Flatten()(keras.layers.Embedding(100, 16)(ids))))


def two_in_two_out() -> keras.Model:
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    return keras.Model(
        [left, right], [keras.layers.Dense(2, name="sum")(left + right), keras.layers.Dense(1, name="one")(left)]
    )


def answers(captured: Capture, inputs: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """What the graph answers after a trip through its file."""
    graph = Graph.from_bytes(captured.graph.to_bytes())
    values = [variable.read_value() for variable in captured.variables]
    return {name: value.numpy() for name, value in graph(values, inputs).items()}


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("build", [mlp, convolution, embedding, two_in_two_out])
def test_a_captured_keras_model_answers_bit_for_bit_like_the_model(build: Any, rows: int) -> None:
    model = build()
    captured = capture(model)
    random = np.random.default_rng(0)
    inputs = {
        name: tf.cast(random.uniform(0, 50, [size or rows for size in spec.shape or ()]), spec.dtype)
        for name, spec in captured.graph.signatures[DEFAULT_SIGNATURE].inputs.items()
    }
    given = list(inputs.values())
    expected = keras.tree.flatten(model(given[0] if len(given) == 1 else given, training=False))
    for found, wanted in zip(answers(captured, inputs).values(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())


def test_names_are_those_people_gave_and_plain_where_they_gave_none() -> None:
    named = capture(two_in_two_out()).graph.signatures[DEFAULT_SIGNATURE]
    plain = capture(convolution()).graph.signatures[DEFAULT_SIGNATURE]
    assert (list(named.inputs), list(named.outputs)) == (["left", "right"], ["sum", "one"])
    assert (list(plain.inputs), list(plain.outputs)) == (["inputs"], ["outputs"])


class Scaler(tf.Module):
    """A module whose variable is read inside a nested function."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable([2.0, 3.0])
        self.table = tf.Variable(tf.reshape(tf.range(12.0), (6, 2)))
        self.offset = tf.constant([10.0, 20.0])
        self.inner = tf.function(lambda rows: tf.gather(self.table, rows) * self.scale)

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.int32)])
    def __call__(self, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"scaled": self.inner(rows) + self.offset, "shape": tf.shape(self.table)}


def test_reads_in_nested_functions_lookups_and_captured_constants_are_lifted() -> None:
    module = Scaler()
    rows = tf.constant([5, 0, 3])
    captured = capture(module)
    for name, value in answers(captured, {"rows": rows}).items():
        np.testing.assert_array_equal(value, module(rows)[name].numpy())
    assert [spec.name.split("/")[0] for spec in captured.graph.parameters] == ["scale", "table"]


def test_another_set_of_parameters_is_another_answer_of_the_same_function() -> None:
    captured = capture(Scaler())
    scale, table = (variable.read_value() for variable in captured.variables)
    before = captured.graph([scale, table], {"rows": tf.constant([1])})["scaled"].numpy()
    after = captured.graph([scale, table + 1], {"rows": tf.constant([1])})["scaled"].numpy()
    np.testing.assert_array_equal(after - before, [[2.0, 3.0]])


def test_parameters_have_the_keys_that_tensorflow_saves_them_under(tmp_path: Path) -> None:
    model = mlp()
    model.compile("adam", "mse")
    captured = capture(model)
    tf.train.Checkpoint(model).write(str(tmp_path / "stock"))
    saved = tf.train.load_checkpoint(str(tmp_path / "stock"))
    for spec, variable in zip(captured.graph.parameters, captured.variables, strict=True):
        np.testing.assert_array_equal(saved.get_tensor(spec.name), variable.numpy())


def test_the_object_graph_is_tensorflows_less_what_is_not_published(tmp_path: Path) -> None:
    model = mlp()
    model.compile("adam", "mse")
    captured = capture(model)
    tf.train.Checkpoint(model).write(str(tmp_path / "stock"))
    parse = trackable_object_graph_pb2.TrackableObjectGraph.FromString
    stock = parse(tf.train.load_checkpoint(str(tmp_path / "stock")).get_tensor(OBJECT_GRAPH))
    ours = parse(captured.object_graph)
    published = {spec.name for spec in captured.graph.parameters}
    assert len(ours.nodes) == len(stock.nodes)
    for mine, theirs in zip(ours.nodes, stock.nodes, strict=True):
        # "root" is how a Checkpoint names the object it was given, not a part of that object
        assert list(mine.children) == [child for child in theirs.children if child.local_name != "root"]
        assert list(mine.attributes) == [one for one in theirs.attributes if one.checkpoint_key in published]


@pytest.mark.slow
def test_the_digest_is_equal_in_another_process_and_after_other_models() -> None:
    here = [mlp(), mlp()][1]
    script = "from tests.test_capture import capture, mlp; print(capture(mlp()).graph.digest)"
    root = Path(__file__).parent.parent
    there = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == capture(here).graph.digest


def test_the_digest_differs_after_changing_an_activation() -> None:
    assert capture(mlp("relu")).graph.digest != capture(mlp("tanh")).graph.digest


def test_a_model_that_is_not_built_is_refused_with_what_to_do() -> None:
    with pytest.raises(GraphError, match="build it, or call it once"):
        capture(keras.Sequential([keras.layers.Dense(2)]))


def test_a_module_without_a_signature_is_refused_with_what_to_do() -> None:
    with pytest.raises(GraphError, match=r"must be a tf\.function with an input_signature"):
        capture(tf.Module())


class Counter(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec((), tf.float32)])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        self.calls.assign_add(1.0)
        return x + self.calls


def test_a_graph_that_assigns_while_predicting_is_refused_by_op() -> None:
    with pytest.raises(GraphError, match="AssignAddVariableOp"):
        capture(Counter())


class Borrower(tf.Module):
    def __init__(self, lent: list[tf.Variable]) -> None:
        super().__init__()
        self._lent: Callable[[], tf.Variable] = lambda: lent[0]  # a closure hides it from TensorFlow's tracking

    @tf.function(input_signature=[tf.TensorSpec((), tf.float32)])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x * self._lent()


def test_a_variable_that_is_not_the_modules_own_is_refused() -> None:
    with pytest.raises(GraphError, match="not part of the model"):
        capture(Borrower([tf.Variable(1.0)]))


class Encoder(tf.Module):
    """Two functions over one set of variables, one of which the other does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.random.normal((4, 3)), name="weights")
        self.scale = tf.Variable(2.0, name="scale")

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def encode(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"code": x @ self.weights}

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="given")])
    def score(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(self.encode(x)["code"], 1) * self.scale


def test_the_functions_of_a_module_are_signatures_over_one_set_of_parameters() -> None:
    module = Encoder()
    captured = capture(module, signatures={"encode": module.encode, "serving_default": module.score})
    assert [one.name.split("/")[0] for one in captured.graph.parameters] == ["scale", "weights"]
    values = [variable.read_value() for variable in captured.variables]
    graph = Graph.from_bytes(captured.graph.to_bytes())
    x = tf.random.normal((5, 4))
    np.testing.assert_array_equal(graph(values, {"x": x}, signature="encode")["code"], module.encode(x)["code"])
    np.testing.assert_array_equal(graph(values, {"given": x})["outputs"], module.score(x))


def test_a_function_alone_has_the_names_of_its_variables_or_the_keys_of_a_root() -> None:
    module = Encoder()
    plain = capture(module.score)
    rooted = capture(module.score, root=tf.train.Checkpoint(net=module))
    assert [one.name for one in plain.graph.parameters] == ["scale", "weights"]
    assert plain.object_graph == b""
    assert {one.name for one in rooted.graph.parameters} == {
        f"net/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("scale", "weights")
    }
    assert [one.name for one in rooted.variables] == [f"{one.name.split('/')[1]}:0" for one in rooted.graph.parameters]


def test_a_function_without_a_signature_takes_the_inputs_that_are_said() -> None:
    @tf.function
    def add(x: tf.Tensor, more: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return x + more["a"], more["b"][0]

    spec = tf.TensorSpec((None,), tf.float32)
    for inputs in ([spec, {"a": spec, "b": [spec]}], {"x": spec, "more": {"a": spec, "b": [spec]}}):
        captured = capture(add, inputs=inputs)
        x = tf.constant([1.0, 2.0])
        found = answers(captured, {"x": x, "more_a": x * 10, "more_b_0": x * 100})
        np.testing.assert_array_equal(found["outputs_0"], [11, 22])
        np.testing.assert_array_equal(found["outputs_1"], [100, 200])
    with pytest.raises(GraphError, match="inputs= must say what it takes"):
        capture(add)


def test_a_concrete_function_is_captured_as_it_was_traced() -> None:
    @tf.function
    def power(x: tf.Tensor, exponent: int, *, offset: tf.Tensor) -> tf.Tensor:
        return x**exponent + offset

    scalar = tf.TensorSpec((), tf.float32)
    captured = capture(power.get_concrete_function(scalar, 3, offset=scalar))
    np.testing.assert_array_equal(answers(captured, {"x": tf.constant(2.0), "offset": tf.constant(1.0)})["outputs"], 9)
    with pytest.raises(GraphError, match="leave inputs= out"):
        capture(power.get_concrete_function(scalar, 3, offset=scalar), inputs=[scalar])


def test_variables_of_one_name_need_a_root() -> None:
    twins = [tf.Variable(1.0, name="twin"), tf.Variable(2.0, name="twin")]
    function = tf.function(lambda x: x * twins[0] + twins[1], input_signature=[tf.TensorSpec((), tf.float32)])
    with pytest.raises(GraphError, match="several variables are called 'twin': say root="):
        capture(function)


@tf.function(
    input_signature=[
        tf.RaggedTensorSpec((None, None), tf.float32, 1),
        tf.RaggedTensorSpec((None, None, None), tf.int32, 2),
        tf.SparseTensorSpec((None, 4), tf.float32),
    ]
)
def composite(rows: tf.RaggedTensor, deep: tf.RaggedTensor, bag: tf.SparseTensor) -> dict[str, Any]:
    return {"sums": tf.reduce_sum(rows, 1), "double": rows * 2.0, "deep": deep.values, "dense": tf.sparse.to_dense(bag)}


def test_ragged_and_sparse_tensors_are_the_tensors_they_consist_of() -> None:
    captured = capture(composite)
    rows, deep = tf.ragged.constant([[1.0, 2.0], [], [3.0]]), tf.ragged.constant([[[1, 2], []], [[3]]])
    bag = tf.sparse.from_dense([[0.0, 0.0, 7.0, 0.0]])
    inputs = {
        "rows_values": rows.values,
        "rows_row_splits": rows.row_splits,
        "deep_values": deep.flat_values,
        "deep_row_splits_0": deep.row_splits,
        "deep_row_splits_1": deep.values.row_splits,
        "bag_indices": bag.indices,
        "bag_values": bag.values,
        "bag_dense_shape": bag.dense_shape,
    }
    assert captured.graph.signatures[DEFAULT_SIGNATURE].inputs.keys() == inputs.keys()
    found, expected = answers(captured, inputs), composite(rows, deep, bag)
    np.testing.assert_array_equal(found["sums"], expected["sums"])
    np.testing.assert_array_equal(found["double_values"], expected["double"].values)
    np.testing.assert_array_equal(found["double_row_splits"], rows.row_splits)
    np.testing.assert_array_equal(found["deep_values"], deep.flat_values)
    np.testing.assert_array_equal(found["dense"], expected["dense"])


class Tables(tf.Module):
    """Every kind of lookup table, looked into in a nested function and in a branch."""

    def __init__(self, vocabulary: Path) -> None:
        super().__init__()
        lookup = tf.lookup
        words = tf.constant(["to", "be"])
        self.static = lookup.StaticHashTable(lookup.KeyValueTensorInitializer(words, tf.constant([3, 4])), -1)
        lines = (tf.string, lookup.TextFileIndex.WHOLE_LINE, tf.int64, lookup.TextFileIndex.LINE_NUMBER)
        self.vocabulary = lookup.StaticVocabularyTable(lookup.TextFileInitializer(str(vocabulary), *lines), 3)
        self.mutable = lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.5)
        self.mutable.insert(words, tf.constant([0.1, 0.2]))
        self.vectors = lookup.experimental.MutableHashTable(tf.string, tf.float32, tf.zeros(2))
        self.vectors.insert(words, tf.constant([[1.0, 2.0], [3.0, 4.0]]))
        self.scale = tf.Variable(2.0)
        self.inner = tf.function(self.static.lookup)

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)])
    def __call__(self, word: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "static": tf.cond(tf.size(word) > 1, lambda: self.inner(word), lambda: tf.zeros_like(word, tf.int32)),
            "vocabulary": self.vocabulary.lookup(word),
            "mutable": self.mutable.lookup(word) * self.scale,
            "vectors": self.vectors.lookup(word),
        }


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    (tmp_path / "words.txt").write_text("or\nnot\nto\n")
    return Tables(tmp_path / "words.txt")


WORD = tf.constant(["to", "not", "be", "question"])


def test_lookup_tables_travel_with_the_graph(tables: Tables) -> None:
    captured = capture(tables)
    found, expected = answers(captured, {"word": WORD}), tables(WORD)
    tables.mutable.insert(tf.constant(["to"]), tf.constant([7.0]))  # what was captured does not follow
    again = answers(captured, {"word": WORD})
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value.numpy(), err_msg=name)
        np.testing.assert_array_equal(again[name], value.numpy(), err_msg=name)


def saved_parameters(directory: Path, graph: Graph) -> list[tf.Tensor]:
    bundle = Bundle.open(directory / "variables" / "variables")
    return [tf.constant(bundle.array(one.name)) for one in graph.parameters]


@pytest.mark.parametrize("times", [1, 2], ids=["saved", "saved, loaded and saved again"])
def test_lookup_tables_of_a_saved_model_are_read_from_its_assets_and_checkpoint(
    tables: Tables, tmp_path: Path, times: int
) -> None:
    module: Any = tables
    for time in range(times):
        function = module.signatures["words"] if time else tables.__call__
        tf.saved_model.save(module, tmp_path / str(time), signatures={"words": function})
        module = tf.saved_model.load(tmp_path / str(time))
    directory = tmp_path / str(times - 1)
    graph = Graph.from_bytes(capture(directory).graph.to_bytes())
    found = graph(saved_parameters(directory, graph), {"word": WORD}, signature="words")
    for name, value in tables(WORD).items():
        np.testing.assert_array_equal(found[name], value.numpy(), err_msg=name)


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


def test_large_captured_tensors_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paramsync.graphs.sources.traces.CONSTANTS_LIMIT", 1000)
    table = tf.random.normal((30, 10))
    function = tf.function(lambda x: tf.gather(table, x), input_signature=[tf.TensorSpec((), tf.int32)])
    with pytest.raises(GraphError, match=r"1200 bytes or more .* the like variables"):
        capture(function)


def test_an_unknown_source_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(GraphError, match=r"ndarray cannot be captured; expected a Keras model, a tf\.Module"):
        capture(np.ones(3))


def test_a_meta_graph_needs_the_names_of_what_goes_in_and_out() -> None:
    with pytest.raises(GraphError, match='inputs=\\["x:0"\\]'):
        capture(tf.compat.v1.MetaGraphDef())


def test_v1_tensors_and_the_meta_file_of_their_graph_give_one_graph(tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default() as source:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        y = tf.matmul(x, v1.get_variable("weights", (4, 2)), name="y")
        v1.train.Saver().export_meta_graph(str(tmp_path / "model.meta"))
        captures = [
            capture(([x], [y])),
            capture(tmp_path / "model.meta", inputs=["x:0"], outputs=["y:0"]),
            capture(v1.train.export_meta_graph(graph=source), inputs=["x"], outputs=["y"]),
        ]
    assert len({one.graph.digest for one in captures}) == 1
    assert [one.name for one in captures[0].graph.parameters] == ["weights"]


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


def test_one_name_where_a_list_belongs_is_refused(tmp_path: Path) -> None:
    for arguments in ({"outputs": "y"}, {"signatures": "score"}):
        with pytest.raises(GraphError, match=r"expected names in a list, found '(y|score)'"):
            capture(tmp_path, **arguments)


def test_the_message_in_a_saved_model_is_not_its_folder(tmp_path: Path) -> None:
    tf.saved_model.save(Scaler(), tmp_path)
    with pytest.raises(GraphError, match=r"expected a SavedModel, found no saved_model\.pb"):
        capture(tmp_path / "saved_model.pb")


class Dense(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, 0.0, empty_key=-1, deleted_key=-2)
        self.table.insert([3], [0.5])

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.int64)])
    def __call__(self, keys: tf.Tensor) -> tf.Tensor:
        return self.table.lookup(keys)


def test_a_table_with_places_that_may_be_empty_is_refused_with_what_to_use(tmp_path: Path) -> None:
    module = Dense()
    tf.saved_model.save(module, tmp_path, signatures=module.__call__)
    for source in (module, tmp_path):
        with pytest.raises(GraphError, match=r"is a DenseHashTable, .* expected a StaticHashTable"):
            capture(source)
