"""What KServe's protocol answers and refuses, over real gRPC. Clients that people have are in test_kserve_client.py."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from inferencer.protocols.kserve import tensors
from paramsync.errors import InputError
from paramsync.kserve import open_inference_pb2 as pb
from tests.support.kserve import SERVICE, X, every, infer, method, negated, raw, serving, strings, typed, wanted, x
from tests.support.programs import eventually
from tests.support.running import LONG, Running, refused
from tests.support.values import VALUES

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("echo")) as (running, _):
        yield running


def test_every_datatype_comes_back_raw_to_whom_sent_it_raw(echo: Running) -> None:
    answer = infer(echo, every())
    names = [one.name for one in answer.outputs]
    found = dict(zip(names, answer.raw_output_contents, strict=True))
    assert {one.name: one.datatype for one in answer.outputs if one.name != "version"} == {
        name.lower(): name for name in VALUES
    }
    assert {name: found[name.lower()] for name in VALUES} == {name: raw(array) for name, array in VALUES.items()}
    assert (answer.model_name, answer.model_version, found["version"]) == ("m", "4", struct.pack("<f", 4.0))


@pytest.mark.parametrize("name", sorted(set(VALUES) - {"FP16", "BF16"}))
def test_typed_contents_hold_what_raw_ones_do(name: str) -> None:
    field = {"U": "uint", "I": "int"}.get(name[0], name.lower()) if name[-2:] != "64" else name.lower()
    values = VALUES[name].tolist()
    sent = pb.ModelInferRequest.InferInputTensor(
        name="a", datatype=name, shape=[3], contents=pb.InferTensorContents(**{f"{field}_contents": values})
    )
    heads = tensors.outlines([sent])
    [found] = tensors.arrays(pb.ModelInferRequest(inputs=[sent]), heads).values()
    assert (found.dtype, raw(found)) == (VALUES[name].dtype, raw(VALUES[name]))
    response = pb.ModelInferResponse()
    tensors.fill(response, {"a": found}, raw=False)
    assert (response.outputs[0].datatype, response.outputs[0].contents) == (name, sent.contents)


def test_typed_contents_are_answered_in_typed_contents(echo: Running) -> None:
    message = typed(fp32_contents=[1.0, 2.0])
    message.id = "mine"
    message.outputs.extend(wanted("version", "y"))
    answer = infer(echo, message)
    found = [(one.name, list(one.shape), list(one.contents.fp32_contents)) for one in answer.outputs]
    assert found == [("version", [], [4.0]), ("y", [1, 2], [-1.0, -2.0])]
    assert (answer.id, list(answer.raw_output_contents)) == ("mine", [])


def test_where_one_output_has_no_typed_field_all_are_raw(echo: Running) -> None:
    answer = infer(echo, typed(fp32_contents=[1.0, 2.0]))
    assert [one.name for one in answer.outputs] == ["half", "version", "y"]
    assert answer.raw_output_contents[0] == np.array([1, 2], np.float16).tobytes()
    assert not any(one.HasField("contents") for one in answer.outputs)


def test_parameters_that_change_no_answer_are_ignored(echo: Running) -> None:
    message = negated(outputs=wanted("y", binary_data_output=pb.InferParameter(bool_param=True)))
    message.parameters["sequence_id"].int64_param = 7
    message.parameters["priority"].uint64_param = 1
    assert infer(echo, message).raw_output_contents[0] == (-X).tobytes()


def test_metadata_says_of_any_rank_minus_one_and_of_other_dtypes_their_own_name(echo: Running) -> None:
    graph = echo.graph()
    shaped = tensors.described(graph.signatures["shaped"].outputs)
    assert [(one.name, one.datatype, list(one.shape)) for one in shaped] == [
        ("complex", "COMPLEX64", [-1]), ("version", "FP32", []), ("x", "FP32", [-1])
    ]  # fmt: skip


def test_a_stream_that_a_caller_keeps_open_ends_when_the_server_drains(served: Running) -> None:
    drained = threading.Event()

    def requests() -> Iterator[bytes]:
        message = pb.ModelInferRequest(model_name="m", raw_input_contents=[X.tobytes()])
        message.inputs.add(name="x", datatype="FP32", shape=X.shape)
        yield message.SerializeToString()
        drained.wait(LONG)

    call = served.predictions.stream_stream(f"/{SERVICE.full_name}/ModelStreamInfer", None, None)
    answers: Any = call(requests(), timeout=LONG)
    found = pb.ModelStreamInferResponse.FromString(next(answers))
    assert (found.error_message, found.infer_response.model_version) == ("", "7")
    assert found.infer_response.parameters["triton_final_response"].bool_param
    served.server.models.drain()
    ready = method(served, "ServerReady")
    eventually(lambda: not ready(pb.ServerReadyRequest(), timeout=LONG).ready, lambda: "it to be ready no more")
    served.drain()
    assert list(answers) == []
    drained.set()


# What is refused: a code, what was expected and what was found


def signature(value: pb.InferParameter) -> pb.ModelInferRequest:
    message = negated()
    message.parameters["signature"].CopyFrom(value)
    return message


_TEXT = pb.InferParameter(string_param="region")
_CONTENTS = pb.InferTensorContents(fp32_contents=[1, 2])
_UNKNOWN = pb.ModelInferRequest.InferInputTensor(name="y", datatype="FP32")
# fmt: off
_MISTAKES: dict[str, tuple[pb.ModelInferRequest, str]] = {
    "no model": (negated(""), "model_name: expected the name of a model, found none"),
    "signature that is no name": (signature(pb.InferParameter(int64_param=1)),
        "parameter 'signature': expected its name as string_param, found int64_param"),
    "missing inputs": (negated(inputs=[], raw_input_contents=[]), "expected 'x', found none"),
    "unknown input": (negated(inputs=[x(), _UNKNOWN]), "inputs: expected 'x', found 'x', 'y'"),
    "input twice": (negated(inputs=[x(), x()]), "input 'x': expected each input once"),
    "unknown output": (negated(outputs=wanted("z")), "expected some of 'half', 'version', 'y', found 'z'"),
    "output twice": (negated(outputs=wanted("y", "y")), "expected each output once, found 'y' more than once"),
    "output without a datatype": (signature(pb.InferParameter(string_param="shaped")), "'complex': expected one of"),
    "no datatype": (negated(inputs=[x("")]), "input 'x', datatype: expected one of BOOL, UINT8"),
    "TensorFlow's datatype": (negated(inputs=[x("DT_FLOAT")]), "FP32, FP64, BYTES, found 'DT_F"),
    "wrong datatype": (negated(inputs=[x("FP64")]), "expected float32 [?, 2], found float64 [1, 2]"),
    "strings": (negated(inputs=[x("BYTES")]), "expected float32 [?, 2], found string [1, 2]"),
    "wrong rank": (negated(inputs=[x(shape=(2,))]), "expected float32 [?, 2], found float32 [2]"),
    "negative": (negated(inputs=[x(shape=(-1, 2))]), "dimensions of 0 or more, found [-1, 2]"),
    "gigantic": (negated(inputs=[x(shape=(1 << 40, 2))]), "expected 8796093022208 bytes of raw_input_con"),
    "beyond any address": (negated(inputs=[x(shape=(1 << 62, 2))]), "expected fewer elements"),
    "empty, beyond any address": (negated(inputs=[x(shape=(0, 1 << 62))]), "shape: expected fewer elements"),
    "many dimensions": (negated(inputs=[x(shape=(1,) * 33)]), "at most 32 dimensions, found 33"),
    "too short": (negated(raw_input_contents=[b"1234567"]),
        "input 'x' float32 [1, 2]: expected 8 bytes of raw_input_contents, found 7"),
    "too long": (negated(raw_input_contents=[bytes(9)]), "expected 8 bytes of raw_input_conte"),
    "too many contents": (negated(raw_input_contents=[bytes(8)] * 2), "expected one for each of 1 inputs, found 2"),
    "no contents": (negated(raw_input_contents=[]), "expected 2 values in fp32_contents, found 0"),
    "both": (negated(inputs=[x(contents=_CONTENTS)]), "found contents of 'x' as well"),
    "other field": (typed(fp64_contents=[1, 2]), "FP32 in fp32_contents, found fp64_contents"),
    "strings as numbers": (typed(bytes_contents=[b"1", b"2"]), "found bytes_contents"),
    "too few values": (typed(fp32_contents=[1]), "expected 2 values in fp32_contents, found 1"),
    "cut off length": (every(BYTES=strings(b"a", b"b") + b"\1\0\0"), "expected 3 strings"),
    "string beyond the end": (every(BYTES=strings(b"a", b"b") + b"\xff\xff\xff\xff"),
        "found string 2 to end beyond the raw_input_contents"),
    "no strings": (every(BYTES=b""), "expected 3 strings, each after its length in 4 bytes"),
    "strings left over": (every(BYTES=strings(b"a", b"b", b"c", b"")), "found 4 bytes more"),
}
_OTHERS: dict[str, tuple[pb.ModelInferRequest, Code, str]] = {
    "version without end": (negated(version="9" * 9999), Code.NOT_FOUND, "label '999"),
    "unknown signature": (signature(pb.InferParameter(string_param="train")), Code.FAILED_PRECONDITION,
        "signature 'train' does not exist; there are: 'negated', 'serving_default', 'shaped', 'summed'"),
}
# fmt: on


@pytest.mark.parametrize("mistake", [*_MISTAKES, *_OTHERS])
def test_a_wrong_request_gets_a_code_and_both_sides_and_harms_nobody(echo: Running, mistake: str) -> None:
    if mistake in _MISTAKES:
        (message, text), code = _MISTAKES[mistake], Code.INVALID_ARGUMENT
    else:
        message, code, text = _OTHERS[mistake]
    found, details = refused(method(echo, "ModelInfer"), message)
    assert (found, text in details, len(details) < 1100) == (code, True, True), details
    assert infer(echo, negated(outputs=wanted("y"))).raw_output_contents[0] == (-X).tobytes()


@pytest.mark.parametrize(("datatype", "value", "text"), [
    ("INT8", 128, "input 'a' int8 [1]: expected values from -128 to 127, found 128 to 128"),
    ("UINT16", 65536, "input 'a' uint16 [1]: expected values from 0 to 65535, found 65536 to 65536"),
])  # fmt: skip
def test_a_typed_value_that_its_datatype_lacks_is_refused(datatype: str, value: int, text: str) -> None:
    field = "uint_contents" if datatype.startswith("U") else "int_contents"
    sent = pb.ModelInferRequest.InferInputTensor(name="a", datatype=datatype, shape=[1])
    getattr(sent.contents, field).append(value)
    with pytest.raises(InputError) as raised:
        tensors.arrays(pb.ModelInferRequest(inputs=[sent]), tensors.outlines([sent]))
    assert str(raised.value) == text
