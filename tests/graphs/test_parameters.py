"""Parameters come by name or from a checkpoint; an error lists all that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import CorruptCheckpointError, ParameterError
from paramsync.graphs.capturing import Capture, capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.parameters import arrange, read


class Line(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = tf.Variable([[2.0], [3.0]])
        self.offset = tf.Variable(1.0)
        self.unused = tf.Variable(7, dtype=tf.int64)

    @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float32)])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x @ self.slope + self.offset}


SLOPE, OFFSET = "slope/.ATTRIBUTES/VARIABLE_VALUE", "offset/.ATTRIBUTES/VARIABLE_VALUE"
GOOD = {SLOPE: np.float32([[1], [2]]), OFFSET: np.float32(3)}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def line() -> tuple[Line, Capture]:
    module = Line()
    return module, capture(module)


def answer(graph: Graph, parameters: Sequence[tf.Tensor]) -> float:
    return float(graph(parameters, {"x": tf.constant([[10.0, 1.0]])})["y"].numpy().item())


def test_arrays_and_tensors_by_name_are_put_in_order(line: tuple[Line, Capture]) -> None:
    graph = line[1].graph
    for values in (GOOD, {name: tf.constant(one) for name, one in reversed(GOOD.items())}):
        assert answer(graph, arrange(graph, values)) == 15.0


def test_an_array_may_be_written_to_afterwards(line: tuple[Line, Capture]) -> None:
    graph, slope = line[1].graph, np.zeros([2, 1], np.float32)
    arranged = arrange(graph, GOOD | {SLOPE: slope})
    slope[:] = 100
    assert answer(graph, arranged) == 3.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"of the graph: expected offset/.*, slope/.* \(2 missing\), found nothing"),
        ({OFFSET: GOOD[OFFSET], "b": 1.0}, r"expected slope/\S* \(1 missing\), found b, offset/"),
        (GOOD | {"b": 1.0}, r"expected offset/.*, slope/\S*, found b too \(1 not needed\)"),
        (GOOD | {OFFSET: np.zeros(1, np.float32)}, r"expected offset/\S* float32 \[\], found float32 \[1\]$"),
        (
            {SLOPE: np.zeros([2, 2], np.float32), OFFSET: np.float64(0)},
            r"offset/\S* float32 \[\], slope/\S* float32 \[2, 1\] \(2 differ\), found float64 \[\], float32 \[2, 2\]",
        ),
    ],
)
def test_all_that_is_wrong_is_listed(line: tuple[Line, Capture], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        arrange(line[1].graph, values)


def test_a_checkpoint_of_tensorflows_is_read_whatever_else_it_holds(line: tuple[Line, Capture], tmp_path: Path) -> None:
    module, captured = line
    prefix = Path(tf.train.Checkpoint(module).write(str(tmp_path / "ckpt")))
    for checkpoint in (prefix, Bundle.open(prefix)):
        assert answer(captured.graph, read(captured.graph, checkpoint)) == 24.0


def test_a_checkpoint_that_is_damaged_or_not_finite_is_refused(line: tuple[Line, Capture], tmp_path: Path) -> None:
    values = tf.train.Checkpoint(slope=tf.Variable([[2.0], [np.nan]]), offset=tf.Variable(1.0))
    prefix = Path(values.write(str(tmp_path / "ckpt")))
    with pytest.raises(ParameterError, match="expected finite values in 'slope"):
        read(line[1].graph, prefix)
    data = Path(f"{prefix}.data-00000-of-00001")
    data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))
    with pytest.raises(CorruptCheckpointError):
        read(line[1].graph, prefix)


def test_a_call_with_other_arguments_says_what_was_expected(line: tuple[Line, Capture]) -> None:
    graph = line[1].graph
    parameters = arrange(graph, GOOD)
    with pytest.raises(ParameterError, match="of a call: expected 2 of them, found 1"):
        answer(graph, parameters[:1])


def test_a_checkpoint_whose_keys_went_by_the_optimizer_is_read_for_a_graph_captured_before_it_was_built(
    tmp_path: Path,
) -> None:
    """A key is the shortest path to a variable, and a trained model has shorter ones through its optimizer."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    graph = capture(model).graph
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    prefix = Path(tf.train.Checkpoint(model).write(str(tmp_path / "ckpt")))
    assert not {one.name for one in graph.parameters} & Bundle.open(prefix).entries.keys()
    x = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(next(iter(graph(read(graph, prefix), {"inputs": tf.constant(x)}).values())), model(x))
