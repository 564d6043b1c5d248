"""Inputs of shapes that a signature does not name: answered as the graph computes them, refused where it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf

from paramsync.inference import misfits
from tests.inferencer.protocols.test_tf_serving import save
from tests.support.http import call
from tests.support.programs import PATIENCE, ROOT
from tests.support.running import LONG, Running, refused, request

Code = grpc.StatusCode
Array = np.ndarray[Any, Any]


class Tables(tf.Module):
    """Signatures that compute with shapes, or with values of their own."""

    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="x")])
    def wide(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x + tf.ones([1 << 20, 1])}

    @tf.function(input_signature=[tf.TensorSpec([2, 4], tf.float32, name="x")])
    def fixed(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        shape = tf.raw_ops.Shape(input=x)  # tf.shape knows it already
        return {"y": _halved(tf.raw_ops.Fill(dims=shape, value=0.0) + x), "size": tf.raw_ops.Size(input=x)}

    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="x")])
    def looped(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        y = tf.while_loop(lambda at, _: at < 3, lambda at, y: (at + 1, y * 2.0), (0, x))[1]
        return {"y": tf.cond(tf.size(x) > 2, lambda: y + 1.0, lambda: y)}


@tf.function(reduce_retracing=True)
def _halved(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, tf.raw_ops.Shape(input=x)) / 2.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`half` is half_plus_two; `tables` has the signatures above."""
    folder = tmp_path_factory.mktemp("misfits")
    save(folder / "half" / "1", 0.5)
    tables = Tables()
    signatures = {"serving_default": tables.wide, "fixed": tables.fixed, "looped": tables.looped}
    tf.saved_model.save(tables, str(folder / "tables" / "1"), signatures=signatures)
    running = Running(folder / "half", folder / "tables")
    for model in ("half", "tables"):
        list(running.sync.Sync(sync_request(model), timeout=LONG))
    yield running
    running.drain()
    running.close()


def sync_request(model: str) -> Any:
    from paramsync.v1 import sync_pb2

    return sync_pb2.SyncRequest(model=model)


def asked(served: Running, x: Any, model: str = "half", signature: str = "") -> Any:
    message = request(model, x=np.asarray(x, np.float32))
    message.model_spec.signature_name = signature
    return message


def answer(served: Running, x: Any, model: str = "half", signature: str = "") -> dict[str, Array]:
    found = served.prediction_service.Predict(asked(served, x, model, signature), timeout=LONG)
    return {name: tf.make_ndarray(one) for name, one in found.outputs.items()}


def test_the_quickstart_of_tensorflow_serving_is_answered_as_there(served: Running) -> None:
    for body, expected in (
        ({"instances": [1.0, 2.0, 5.0]}, {"predictions": [2.5, 3.0, 4.5]}),
        ({"inputs": [2.0, 3.0, 4.0]}, {"outputs": [3.0, 3.5, 4.0]}),
        ({"inputs": 2.0}, {"outputs": 3.0}),
    ):
        got = call(served.rest_port, "POST", "/v1/models/half:predict", body)
        assert got.status == 200
        assert expected.items() <= json.loads(got.body).items()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0,), (2, 3), (1, 1, 2), (2, 0, 5), (1,) * 8])
def test_what_the_graph_computes_is_answered(served: Running, shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    found = answer(served, x)["y"]
    assert (found.shape, found.tolist()) == (shape, (x / 2 + 2).tolist())


@pytest.mark.parametrize("shape", [(), (3,), (4, 2), (2, 4), (1, 2, 3)])
def test_nothing_relies_on_shapes_that_a_signature_fixed(served: Running, shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    found = answer(served, x, "tables", "fixed")
    assert (found["y"].tolist(), found["size"].tolist()) == ((x / 2).tolist(), x.size)


@pytest.mark.parametrize("shape", [(2,), (3,), (1, 3), (2, 1)])
def test_loops_and_branches_take_them_too(served: Running, shape: tuple[int, ...]) -> None:
    found = answer(served, np.ones(shape), "tables", "looped")["y"]
    assert found.tolist() == np.full(shape, 9.0 if np.prod(shape) > 2 else 8.0).tolist()


def test_names_and_dtypes_are_checked(served: Running) -> None:
    code, text = refused(served.prediction_service.Predict, request("half", x=np.ones([3], np.int32)))
    wrong = "input 'x': expected float32 [?, 1], found int32 [3]: pass astype('float32')"
    assert (code, text) == (Code.INVALID_ARGUMENT, wrong)
    code, text = refused(served.prediction_service.Predict, request("half", z=np.ones([3], np.float32)))
    assert (code, text) == (Code.INVALID_ARGUMENT, "inputs: expected 'x', found 'z'")


def test_what_the_graph_cannot_compute_is_the_callers_fault_and_says_why(served: Running) -> None:
    code, text = refused(served.prediction_service.Predict, asked(served, np.ones([2, 3]), "tables"))
    assert code is Code.INVALID_ARGUMENT
    assert text.startswith("input 'x': expected float32 [?, 1], found float32 [2, 3]: Dimensions must be equal")
    got = call(served.rest_port, "POST", "/v1/models/tables:predict", {"inputs": [[1.0, 2.0], [3.0, 4.0]]})
    assert (got.status, "found float32 [2, 2]: Dimensions must be equal" in got.error) == (400, True)


def test_small_inputs_that_would_make_a_large_table_are_refused(served: Running) -> None:
    code, text = refused(served.prediction_service.Predict, asked(served, np.ones([1, 1, 4096]), "tables"))
    assert code is Code.INVALID_ARGUMENT
    assert f"it would make {(1 << 20) * 4096 * 4} bytes of them, more than the {misfits.MOST_BYTES}" in text


def test_nobody_loops_over_what_has_no_element(served: Running) -> None:
    for shape in ((1 << 13, 1 << 13, 0), (1 << 30, 1 << 30, 0)):
        message = asked(served, np.ones([1]))
        del message.inputs["x"].tensor_shape.dim[:]
        message.inputs["x"].ClearField("float_val")
        message.inputs["x"].ClearField("tensor_content")
        for size in shape:
            message.inputs["x"].tensor_shape.dim.add(size=size)
        code, text = refused(served.prediction_service.Predict, message)
        assert (code, "shape: expected fewer elements" in text) == (Code.INVALID_ARGUMENT, True)


def test_they_go_alone_and_others_in_batches_as_before(served: Running) -> None:
    def together(x: Any, model: str) -> tuple[float, float]:
        message = asked(served, x, model)
        with ThreadPoolExecutor(16) as threads:
            futures = [served.prediction_service.Predict.future(message, timeout=LONG) for _ in range(64)]
            list(threads.map(lambda one: one.result(), futures))
        text = call(served.rest_port, "GET", "/metrics").body.decode()
        return calls(text, "sum", model), calls(text, "count", model)

    before = together(np.ones([1]), "half")
    after = together(np.ones([1]), "half")
    assert after[0] - before[0] == after[1] - before[1] == 64
    fitting = together(np.ones([1, 1]), "half")
    assert fitting[0] - after[0] == 64
    assert fitting[1] - after[1] < 64


def calls(text: str, what: str, model: str) -> float:
    """How many requests, or calls, there were of a model."""
    lines = [line for line in text.splitlines() if line.startswith(f"paramsync_batch_requests_{what}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if f'model="{model}"' in line)


@pytest.mark.slow
def test_no_shape_ends_the_process(whole: bool) -> None:
    count = "40" if whole else "1"
    command = [sys.executable, "-m", "tests.support.misfits", "7", count]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30 * PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    kinds, answered, refusals = (int(word) for word in done.stdout.split() if word.isdecimal())
    assert kinds > 200
    assert answered > kinds / 4
    assert refusals > kinds / 4
