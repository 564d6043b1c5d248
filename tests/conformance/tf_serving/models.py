"""Each SavedModel of a checkout of TensorFlow Serving, served, against what TensorFlow's own loader computes."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from tests.support.programs import Program

_PATIENCE = 120.0
_FEATURES = {"x": [2.0], "x2": [3.0]}  # of the examples that their models parse
_ROWS = 3
_STATEFUL = {"saved_model_counter": ("incr_counter", "incr_counter_by", "reset_counter")}

Signatures = dict[str, tuple[dict[str, Any], dict[str, Any]]]
"""By signature: inputs, and what TensorFlow makes of them."""


def run(source: Path, folder: Path, words: str) -> int:
    """Says of each model what came out. Returns how many signatures differ or are refused that TensorFlow computes."""
    bases: dict[Path, list[Path]] = {}
    for one in sorted(source.rglob("saved_model.pb")):
        if one.parent.name.isdecimal() and words in str(one.parent.parent):
            bases.setdefault(one.parent.parent, []).append(one.parent)
    expected = {one: _computed(one) for versions in bases.values() for one in versions}
    log = folder / "models.log"
    port = _free_port()
    config = folder / "models.config"
    names = {base: f"m{number}" for number, base in enumerate(bases)}
    listed = [f"config {{ name: {json.dumps(name)} base_path: {json.dumps(str(base))} model_version_policy"
              f" {{ latest {{ num_versions: {len(bases[base])} }} }} }}" for base, name in names.items()]  # fmt: skip
    config.write_text(f"model_config_list {{ {' '.join(listed)} }}")
    served = failed = 0
    given = ["serve", "--tf-serving", f"--port={port}", f"--model_config_file={config}"]
    with Program("paramsync.cli", *given, log=log) as program, grpc.insecure_channel(f"localhost:{port}") as channel:
        program.said("inferencer ready")
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for version, found in expected.items():
            name = f"{version.parent.name}/{version.name}"
            if isinstance(found, Exception):
                _say(f"left out {name}: TensorFlow does not load it: {_line(found)}")
                continue
            bad: dict[str, list[str]] = {}  # by what is wrong
            for signature, (inputs, outputs) in found.items():
                if said := _differs(stub, names[version.parent], int(version.name), signature, inputs, outputs):
                    bad.setdefault(said, []).append(signature)
            served += not bad
            failed += bool(bad)
            for said, signatures in bad.items():
                _say(f"FAILED   {name}, {', '.join(signatures)}: {said}")
            if not bad:
                _say(f"passed   {name}: {', '.join(found)}")
    loaded = sum(not isinstance(one, Exception) for one in expected.values())
    _say(f"models: {served} passed, {failed} failed of {loaded} that TensorFlow loads")
    return failed


def _computed(version: Path) -> Signatures | Exception:
    """By a session, as TensorFlow Serving computes. A signature that it cannot compute is not asked for."""
    found: Signatures = {}
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(version))
            for name, signature in sorted(meta_graph.signature_def.items()):
                if name.startswith("__"):
                    continue
                if name in _STATEFUL.get(version.parent.name, ()):
                    _say(f"left out {version.parent.name}, {name}: it changes what it keeps")
                    continue
                inputs = {key: _made_up(session.graph, info) for key, info in signature.inputs.items()}
                fed = {signature.inputs[key].name: value for key, value in inputs.items()}
                try:
                    fetched = session.run({key: info.name for key, info in signature.outputs.items()}, fed)
                except (tf.errors.OpError, ValueError) as error:
                    _say(f"left out {version.parent.name}, {name}: TensorFlow cannot compute it: {_line(error)}")
                    continue
                found[name] = inputs, fetched
    except Exception as error:  # noqa: BLE001, whatever it is that TensorFlow says of it
        return error
    return found


def _made_up(graph: tf.Graph, info: Any) -> Any:
    """What the placeholder takes, which is not always what the signature says."""
    sizes = graph.get_tensor_by_name(info.name).shape
    shape = [_ROWS if size is None else size for size in ([None] if sizes.rank is None else sizes.as_list())]
    if info.dtype == tf.string.as_datatype_enum:
        features = {key: tf.train.Feature(float_list=tf.train.FloatList(value=one)) for key, one in _FEATURES.items()}
        example = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
        return np.full(shape or [_ROWS], example, object)
    return np.random.default_rng(0).random(shape).astype(tf.as_dtype(info.dtype).as_numpy_dtype)


def _differs(stub: Any, model: str, version: int, signature: str, inputs: Any, outputs: Any) -> str:
    """What is wrong with our answer; nothing where it is the same."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = model, signature
    request.model_spec.version.value = version
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    try:
        answer = stub.Predict(request, timeout=_PATIENCE)
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    if answer.outputs.keys() != outputs.keys():
        return f"expected {sorted(outputs)}, found {sorted(answer.outputs)}"
    for name, value in outputs.items():
        ours = tf.make_ndarray(answer.outputs[name])
        if ours.shape != value.shape or not (
            np.allclose(ours, value) if value.dtype.kind == "f" else np.array_equal(ours, value)
        ):
            return f"{name}: expected {value.tolist()}, found {ours.tolist()}"
    return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
