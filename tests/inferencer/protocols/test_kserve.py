"""What KServe's protocol answers, over real gRPC. Clients that people have are elsewhere."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from inferencer.protocols.kserve import tensors
from paramsync.kserve import open_inference_pb2 as pb
from tests.support.kserve import SERVICE, X, every, infer, method, negated, raw, serving, typed, wanted, x
from tests.support.programs import eventually
from tests.support.running import LONG, Running
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


def test_any_byte_but_zero_is_true(echo: Running) -> None:
    answer = infer(echo, every(BOOL=b"\x00\x02\xff"))
    assert dict(zip([one.name for one in answer.outputs], answer.raw_output_contents, strict=True))["bool"] == b"\0\1\1"


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


def test_a_version_is_named_by_number_by_label_or_not_at_all(echo: Running) -> None:
    for version, number in (("", "4"), ("3", "3"), ("4", "4"), ("stable", "3")):
        answer = infer(echo, negated(version=version, outputs=wanted("version")))
        assert (answer.model_version, answer.raw_output_contents[0]) == (number, struct.pack("<f", int(number)))


def test_trailing_metadata_names_the_version(echo: Running) -> None:
    _, call = method(echo, "ModelInfer").with_call(negated(), timeout=LONG)
    assert dict(call.trailing_metadata())["paramsync-version"] == "4"


def test_what_has_no_elements_is_no_mistake(echo: Running) -> None:
    answer = infer(echo, negated(inputs=[x(shape=(0, 2))], raw_input_contents=[b""], outputs=wanted("y")))
    assert (list(answer.outputs[0].shape), list(answer.raw_output_contents)) == ([0, 2], [b""])


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
