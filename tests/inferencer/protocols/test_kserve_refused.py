"""What a wrong request of KServe's protocol is told: a code, what was expected and what was found."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from inferencer.protocols.kserve import tensors
from paramsync.errors import InputError
from paramsync.kserve import open_inference_pb2 as pb
from tests.support.kserve import SERVICE, X, every, infer, method, negated, serving, strings, typed, wanted, x
from tests.support.running import Running, refused

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("echo")) as (running, _):
        yield running


def signature(value: pb.InferParameter) -> pb.ModelInferRequest:
    message = negated()
    message.parameters["signature"].CopyFrom(value)
    return message


_TEXT = pb.InferParameter(string_param="region")
_CONTENTS = pb.InferTensorContents(fp32_contents=[1, 2])
_MISTAKES: dict[str, tuple[pb.ModelInferRequest, grpc.StatusCode, str]] = {
    "no model": (negated(""), Code.INVALID_ARGUMENT, "model_name: expected the name of a model, found none"),
    "unknown model": (negated("other"), Code.NOT_FOUND, "model 'other' is not served here; served: 'empty', 'm'"),
    "model without a version": (negated("empty"), Code.UNAVAILABLE, "model 'empty' is not serving"),
    "unknown version": (negated(version="5"), Code.NOT_FOUND, "version 5 of model 'm' is not there; there are: 3, 4"),
    "version without end": (negated(version="9" * 9999), Code.NOT_FOUND, "label '999"),
    "unknown label": (negated(version="canary"), Code.NOT_FOUND, "label 'canary' of model 'm' is not there"),
    "unknown signature": (
        signature(pb.InferParameter(string_param="train")),
        Code.FAILED_PRECONDITION,
        "signature 'train' does not exist; there are: 'negated', 'serving_default', 'shaped', 'summed'",
    ),
    "signature that is no name": (
        signature(pb.InferParameter(int64_param=1)),
        Code.INVALID_ARGUMENT,
        "parameter 'signature': expected its name as string_param, found int64_param",
    ),
    "missing inputs": (negated(inputs=[], raw_input_contents=[]), Code.INVALID_ARGUMENT, "expected 'x', found none"),
    "unknown input": (
        negated(inputs=[x(), pb.ModelInferRequest.InferInputTensor(name="y", datatype="FP32")]),
        Code.INVALID_ARGUMENT,
        "inputs: expected 'x', found 'x', 'y'",
    ),
    "input twice": (negated(inputs=[x(), x()]), Code.INVALID_ARGUMENT, "input 'x': expected each input once"),
    "unknown output": (
        negated(outputs=wanted("z")),
        Code.INVALID_ARGUMENT,
        "expected some of 'half', 'version', 'y', found 'z'",
    ),
    "output twice": (
        negated(outputs=wanted("y", "y")),
        Code.INVALID_ARGUMENT,
        "expected each output once, found 'y' more than once",
    ),
    "output without a datatype": (
        signature(pb.InferParameter(string_param="shaped")),
        Code.INVALID_ARGUMENT,
        "output 'complex': expected one of",
    ),
    "no datatype": (negated(inputs=[x("")]), Code.INVALID_ARGUMENT, "input 'x', datatype: expected one of BOOL, UINT8"),
    "TensorFlow's datatype": (negated(inputs=[x("DT_FLOAT")]), Code.INVALID_ARGUMENT, "FP32, FP64, BYTES, found 'DT_F"),
    "wrong datatype": (
        negated(inputs=[x("FP64")]),
        Code.INVALID_ARGUMENT,
        "expected float32 [?, 2], found float64 [1, 2]",
    ),
    "strings": (negated(inputs=[x("BYTES")]), Code.INVALID_ARGUMENT, "expected float32 [?, 2], found string [1, 2]"),
    "wrong rank": (
        negated(inputs=[x(shape=(2,))]),
        Code.INVALID_ARGUMENT,
        "expected float32 [?, 2], found float32 [2]",
    ),
    "wrong shape": (negated(inputs=[x(shape=(1, 3))]), Code.INVALID_ARGUMENT, "found float32 [1, 3]"),
    "negative": (negated(inputs=[x(shape=(-1, 2))]), Code.INVALID_ARGUMENT, "dimensions of 0 or more, found [-1, 2]"),
    "gigantic": (
        negated(inputs=[x(shape=(1 << 40, 2))]),
        Code.INVALID_ARGUMENT,
        "expected 8796093022208 bytes of raw_input_con",
    ),
    "beyond any address": (negated(inputs=[x(shape=(1 << 62, 2))]), Code.INVALID_ARGUMENT, "expected fewer elements"),
    "empty, beyond any address": (
        negated(inputs=[x(shape=(0, 1 << 62))]),
        Code.INVALID_ARGUMENT,
        "input 'x', shape: expected fewer elements",
    ),
    "many dimensions": (negated(inputs=[x(shape=(1,) * 33)]), Code.INVALID_ARGUMENT, "at most 32 dimensions, found 33"),
    "too short": (
        negated(raw_input_contents=[b"1234567"]),
        Code.INVALID_ARGUMENT,
        "input 'x' float32 [1, 2]: expected 8 bytes of raw_input_contents, found 7",
    ),
    "too long": (negated(raw_input_contents=[bytes(9)]), Code.INVALID_ARGUMENT, "expected 8 bytes of raw_input_conte"),
    "too many contents": (
        negated(raw_input_contents=[bytes(8)] * 2),
        Code.INVALID_ARGUMENT,
        "expected one for each of 1 inputs, found 2",
    ),
    "no contents": (
        negated(raw_input_contents=[]),
        Code.INVALID_ARGUMENT,
        "expected 2 values in fp32_contents, found 0",
    ),
    "both": (negated(inputs=[x(contents=_CONTENTS)]), Code.INVALID_ARGUMENT, "found contents of 'x' as well"),
    "other field": (typed(fp64_contents=[1, 2]), Code.INVALID_ARGUMENT, "FP32 in fp32_contents, found fp64_contents"),
    "strings as numbers": (typed(bytes_contents=[b"1", b"2"]), Code.INVALID_ARGUMENT, "found bytes_contents"),
    "too few values": (typed(fp32_contents=[1]), Code.INVALID_ARGUMENT, "expected 2 values in fp32_contents, found 1"),
    "cut off length": (every(BYTES=strings(b"a", b"b") + b"\1\0\0"), Code.INVALID_ARGUMENT, "expected 3 strings"),
    "string beyond the end": (
        every(BYTES=strings(b"a", b"b") + b"\xff\xff\xff\xff"),
        Code.INVALID_ARGUMENT,
        "found string 2 to end beyond the raw_input_contents",
    ),
    "no strings": (every(BYTES=b""), Code.INVALID_ARGUMENT, "expected 3 strings, each after its length in 4 bytes"),
    "strings left over": (every(BYTES=strings(b"a", b"b", b"c", b"")), Code.INVALID_ARGUMENT, "found 4 bytes more"),
    "shared memory": (
        negated(inputs=[x(parameters={"shared_memory_region": _TEXT})]),
        Code.UNIMPLEMENTED,
        "shared memory is not",
    ),
    "classification": (
        negated(outputs=wanted("y", classification=pb.InferParameter(int64_param=2))),
        Code.UNIMPLEMENTED,
        "classification is not offered; ask for the output itself",
    ),
}


@pytest.mark.parametrize("mistake", _MISTAKES)
def test_a_wrong_request_gets_a_code_and_both_sides_and_harms_nobody(echo: Running, mistake: str) -> None:
    message, code, text = _MISTAKES[mistake]
    found, details = refused(method(echo, "ModelInfer"), message)
    assert (found, text in details, len(details) < 1100) == (code, True, True), details
    assert infer(echo, negated(outputs=wanted("y"))).raw_output_contents[0] == (-X).tobytes()


@pytest.mark.parametrize(("datatype", "value", "text"), [
    ("INT8", 128, "input 'a' int8 [1]: expected values from -128 to 127, found 128 to 128"),
    ("UINT16", 65536, "input 'a' uint16 [1]: expected values from 0 to 65535, found 65536 to 65536"),
])  # fmt: skip
def test_a_typed_value_that_its_datatype_lacks_is_refused(datatype: str, value: int, text: str) -> None:
    field = "uint_contents" if datatype.startswith("U") else "int_contents"
    sent = pb.ModelInferRequest.InferInputTensor(
        name="a", datatype=datatype, shape=[1], contents=pb.InferTensorContents()
    )
    getattr(sent.contents, field).append(value)
    with pytest.raises(InputError) as raised:
        tensors.arrays(pb.ModelInferRequest(inputs=[sent]), tensors.outlines([sent]))
    assert str(raised.value) == text


def test_bytes_that_are_no_message_and_messages_beyond_the_limit_are_refused(echo: Running) -> None:
    call = echo.predictions.unary_unary(f"/{SERVICE.full_name}/ModelInfer", None, None)
    text = "request: expected a inference.ModelInferRequest, found 100 bytes that are none"
    assert refused(call, b"\xff" * 100) == (Code.INVALID_ARGUMENT, text)
    assert refused(call, bytes(65 << 20))[0] is Code.RESOURCE_EXHAUSTED
    assert infer(echo, negated()).model_version == "4"
