"""Large messages made to be slow to read: they are parsed in small steps, and mean what they mean when read at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError, Message
from tensorflow_serving.apis import classification_pb2, inference_pb2, predict_pb2

from inferencer.transport import partial_parsing
from paramsync.errors import InputError
from paramsync.kserve import open_inference_pb2 as kserve_pb2
from paramsync.rpc.tensor_proto import collected, from_array, packed

MB = 1 << 20


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes protobuf parses in one step each, in which no other thread of Python runs."""
    sizes: list[int] = []
    parse = partial_parsing._Merge._parse

    def count(merge: Any, message: Message, begin: int, end: int) -> None:
        sizes.append(end - begin)
        parse(merge, message, begin, end)

    monkeypatch.setattr(partial_parsing._Merge, "_parse", count)
    return sizes


def tensor(content: bytes) -> bytes:
    return packed(2, packed(1, b"x") + packed(2, content))


HOSTILE: dict[str, tuple[type[Message], Callable[[int], bytes]]] = {
    "an output filter": (predict_pb2.PredictRequest, lambda size: b"\x1a\x00" * (size // 2)),
    "inputs": (predict_pb2.PredictRequest, lambda size: b"\x12\x05\x0a\x03abc" * (size // 7)),
    "what nobody knows": (predict_pb2.PredictRequest, lambda size: b"\xf8\x01\x00" * (size // 3)),
    "dimensions": (predict_pb2.PredictRequest, lambda size: tensor(packed(2, b"\x12\x00" * (size // 2)))),
    "strings": (predict_pb2.PredictRequest, lambda size: tensor(b"\x42\x00" * (size // 2))),
    "numbers": (predict_pb2.PredictRequest, lambda size: tensor(b"\x2d\0\0\0\0" * (size // 5))),
    "tasks": (inference_pb2.MultiInferenceRequest, lambda size: b"\x0a\x00" * (size // 2)),
    "examples": (
        classification_pb2.ClassificationRequest,
        lambda size: packed(2, packed(1, b"\x0a\x00" * (size // 2))),
    ),
    "kserve's inputs": (kserve_pb2.ModelInferRequest, lambda size: b"\x2a\x00" * (size // 2)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_large_message_of_tiny_fields_is_refused_and_parsed_in_small_steps(what: str, parsed: list[int]) -> None:
    kind, made = HOSTILE[what]
    with pytest.raises(InputError, match="at most 1048576 fields in a message above 131072"):
        partial_parsing.parse(kind, made(8 * MB))
    assert max(parsed, default=0) <= 2 * partial_parsing.PIECE


def test_a_large_message_of_packed_numbers_is_read_in_small_steps(parsed: list[int]) -> None:
    content = tensor(b"\x08\x03" + packed(7, b"\x05" * (8 * MB)))
    request = partial_parsing.parse(predict_pb2.PredictRequest, content)
    values = collected(request.inputs["x"].int_val, np.int32)
    assert max(parsed, default=0) <= 2 * partial_parsing.PIECE
    assert (values.size, values.min(), values.max()) == (8 * MB, 5, 5)


def large_request() -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest(output_filter=["a", "b"])
    request.model_spec.name = "m"
    request.model_spec.version.value = 1 << 40
    rng = np.random.default_rng(5)
    for name, array in {
        "content": rng.random([300, 1000], np.float32),
        "strings": np.array([b"s" * size for size in range(1500)], object),
        "none": np.zeros([0], np.float32),
    }.items():
        request.inputs[name].ParseFromString(from_array(array).SerializeToString())
    request.inputs["floats"].float_val.extend(rng.random(100_000).tolist())
    request.inputs["ints"].int64_val.extend(rng.integers(-(1 << 62), 1 << 62, 50_000).tolist())
    return request


def large_examples() -> classification_pb2.ClassificationRequest:
    request = classification_pb2.ClassificationRequest()
    listed = request.input.example_list_with_context
    listed.context.features.feature["long"].bytes_list.value.extend([b"c" * 200_000, b"d" * 10])
    listed.context.features.feature["many"].int64_list.value.extend(range(100_000))
    for number in range(5000):
        listed.examples.add().features.feature["x"].float_list.value.extend([number] * 10)
    return request


def large_inference() -> kserve_pb2.ModelInferRequest:
    request = kserve_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"r" * 300_000, b"", b"s" * 100])
    request.parameters["signature"].string_param = "t" * 200_000
    request.inputs.add(name="a", shape=[1] * 30).contents.bytes_contents.extend([b"x" * 100] * 4000)
    request.inputs.add(name="b").contents.int_contents.extend(range(-100_000, 100_000))
    return request


@pytest.mark.parametrize("made", [large_request, large_examples, large_inference])
def test_a_large_message_is_what_it_is_when_it_is_read_at_once(made: Callable[[], Message]) -> None:
    message = made()
    content = message.SerializeToString()
    assert len(content) > 4 * partial_parsing.PIECE
    assert partial_parsing.parse(type(message), content) == message
    again = partial_parsing.parse(type(message), content + content)  # the same field twice means the same in pieces
    assert again == type(message).FromString(content + content)


@pytest.mark.parametrize("made", [large_request, large_examples, large_inference])
def test_a_large_message_that_is_damaged_is_what_it_is_when_it_is_read_at_once(made: Callable[[], Message]) -> None:
    kind, content = type(made()), made().SerializeToString()
    source = random.Random(3)
    for _ in range(40):
        damaged = bytearray(content)
        for _ in range(3):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        whole = bytes(damaged[: source.choice([len(damaged), source.randrange(len(damaged))])])
        try:
            expected: Message | None = kind.FromString(whole)
        except DecodeError:
            expected = None
        try:
            found: Message | None = partial_parsing.parse(kind, whole)
        except (DecodeError, InputError):
            found = None
        if found is not None:  # else it has a group, the one thing that protobuf reads and we do not
            assert expected is not None
            assert found.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
