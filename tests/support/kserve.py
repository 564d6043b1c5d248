"""Requests of KServe's protocol, valid or with one fault, and a server for them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import message_factory

from paramsync.kserve import open_inference_pb2 as pb
from tests.support.echoes import Echoes
from tests.support.running import LONG, Running, synced
from tests.support.values import VALUES

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
X = np.array([[1.0, 2.0]], np.float32)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Running, Echoes]]:
    """Serve model `m` in versions 3 (labelled stable) and 4, and model `empty` without versions."""
    echoes, running = Echoes(folder / "m"), Running(folder / "m", folder / "empty")
    try:
        for number in (3, 4):
            echoes.publish(number)
            synced(running)
        running.server.models.follower("m").label("stable", 3, timeout=LONG)
        yield running, echoes
        running.drain()
    finally:
        running.close()
        echoes.close()


def method(running: Running, name: str) -> Any:
    described = SERVICE.methods_by_name[name]
    return running.predictions.unary_unary(
        f"/{SERVICE.full_name}/{name}",
        lambda message: message.SerializeToString(),
        message_factory.GetMessageClass(described.output_type).FromString,
    )


def infer(running: Running, message: pb.ModelInferRequest) -> pb.ModelInferResponse:
    answer: pb.ModelInferResponse = method(running, "ModelInfer")(message, timeout=LONG)
    return answer


def negated(model: str = "m", version: str = "", **fields: Any) -> pb.ModelInferRequest:
    """A valid request, except for the fields that are given."""
    message = pb.ModelInferRequest(model_name=model, model_version=version, raw_input_contents=[X.tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    message.parameters["signature"].string_param = "negated"
    for name, value in fields.items():
        del getattr(message, name)[:]
        getattr(message, name).extend(value)
    return message


def x(datatype: str = "FP32", shape: tuple[int, ...] = (1, 2), **more: Any) -> pb.ModelInferRequest.InferInputTensor:
    return pb.ModelInferRequest.InferInputTensor(name="x", datatype=datatype, shape=shape, **more)


def typed(**contents: Any) -> pb.ModelInferRequest:
    """Make the same request as `negated`, with the contents in typed fields."""
    return negated(inputs=[x(contents=pb.InferTensorContents(**contents))], raw_input_contents=[])


def every(**contents: bytes) -> pb.ModelInferRequest:
    """A request with an input of every datatype, raw; `contents` replace the contents of some inputs."""
    message = pb.ModelInferRequest(model_name="m")
    for name, array in VALUES.items():
        message.inputs.add(name=name.lower(), datatype=name, shape=array.shape)
        message.raw_input_contents.append(contents.get(name, raw(array)))
    return message


def raw(array: np.ndarray[Any, Any]) -> bytes:
    return strings(*array) if array.dtype == object else array.tobytes()


def strings(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(one)) + one for one in values)


def wanted(*names: str, **parameters: pb.InferParameter) -> list[pb.ModelInferRequest.InferRequestedOutputTensor]:
    return [pb.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=parameters) for name in names]
