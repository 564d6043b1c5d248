"""JSON bodies: values and refusals are those of Python's own parser, memory is bounded, arrays have every dtype."""

from __future__ import annotations

import base64
import json
import random
import string
import tracemalloc
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from inferencer.protocols import json_reader
from inferencer.protocols.json_arrays import is_small, read, to_lists, write_lists
from inferencer.protocols.json_reader import Body, parsed_bytes
from paramsync.errors import InputError, RequestError, TooLargeError
from paramsync.graphs.specs import TensorSpec
from tests.support.hostile_bodies import KINDS, hostile
from tests.support.http import MB

LEAVES = (
    lambda draw: draw.randint(-300, 300),
    lambda draw: draw.choice([1 << 40, -(1 << 62), 1 << 63, (1 << 64) + 1, 10**30, 10**400]),
    lambda draw: draw.choice([0.5, -1e300, 1e-7, float("inf"), float("-inf"), float("nan"), 3.0]),
    lambda draw: draw.choice([True, False, None]),
    lambda draw: "".join(
        draw.choices(string.printable + 'é\ud800\N{SNOWMAN}\N{GRINNING FACE}[]{},:"\\', k=draw.randint(0, 40))
    ),
    lambda draw: {"b64": "AAAA"},
)


def value(draw: random.Random, deep: int) -> Any:
    """Like those that are asked with, mostly: rows of one kind, or of anything."""
    if not deep or draw.random() < 0.2:
        return draw.choice(LEAVES)(draw)
    match draw.randint(0, 3):
        case 0:
            return [value(draw, deep - 1) for _ in range(draw.randint(0, 9))]
        case 1:
            leaf, width = draw.choice(LEAVES), draw.randint(0, 3)
            return [[leaf(draw) for _ in range(width)] for _ in range(draw.randint(0, 9))]
        case 2:
            return [
                {"x": value(draw, min(1, deep - 1)), "longer \\ name": value(draw, min(1, deep - 1))}
                for _ in range(draw.randint(0, 6))
            ]
        case _:
            return {f"k{at}": value(draw, deep - 1) for at in range(draw.randint(0, 6))}


def written(draw: random.Random) -> bytes:
    body = {f"field {at}": value(draw, 4) for at in range(draw.randint(1, 3))}
    return json.dumps(body, indent=draw.choice([None, None, 1])).encode()


def plain(value: Any) -> Any:
    """The value, without a difference between 1 and 1.0."""
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {key: plain(element) for key, element in value.items()}
    return float(value) if type(value) is int and abs(value) < 1 << 1000 else value


def as_python_reads_it(content: bytes) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        found = json.loads(content.decode("utf-8-sig"), object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def as_we_read_it(content: bytes) -> Any:
    try:
        return Body(content).fields
    except RequestError:
        return None


def test_values_are_those_of_python() -> None:
    draw = random.Random(1)
    for _ in range(300):
        content = written(draw)
        assert repr(plain(Body(content).fields)) == repr(plain(json.loads(content))), content


def test_what_is_no_json_is_refused_as_python_refuses_it() -> None:
    draw = random.Random(2)
    refused = 0
    for _ in range(500):
        content = bytearray(written(draw))
        for _ in range(draw.randint(1, 2)):
            at = draw.randrange(len(content))
            content[at : at + draw.randint(0, 2)] = draw.choice(
                [b"", b"[", b"]", b"{", b"}", b",", b'"', b"\\", b"\xff", b" ", b":", b"1"]
            )
        expected = as_python_reads_it(bytes(content))
        assert repr(plain(as_we_read_it(bytes(content)))) == repr(plain(expected)), bytes(content)
        refused += expected is None
    assert 100 < refused < 400


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"x": [NaN, Infinity, -Infinity]}', [float("nan"), float("inf"), float("-inf")]),
        (b'{"x": [1e999, 123456789012345678901]}', [float("inf"), 123456789012345678901]),
        (b'\xef\xbb\xbf{"x": ["\\ud83d\\ude00", "\\ud800", "a:b", "{NaN"]}', ["\U0001f600", "\ud800", "a:b", "{NaN"]),
        (b'{"x": [' + b"[" * 500 + b"]" * 500 + b"]}", None),
    ],
    ids=["words", "numbers beyond float and int64", "strings", "levels"],
)
def test_what_clients_may_send_is_read(content: bytes, expected: Any) -> None:
    found = Body(content).fields["x"]
    assert expected is None or repr(found) == repr(expected)


@pytest.mark.parametrize("text", ['"x": 1, "x": 2', '"y": [{"x": ":", "x": 2}]', '"y": {"x": 1, "\\u0078": 1}'])
def test_a_key_that_is_there_twice_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="key 'x': expected once in an object, found 2 times"):
        Body(f"{{{text}}}".encode())


@pytest.mark.parametrize(
    "text", ['{"a": "b:c", "x": [1.5]}', r'{"a\":": ":\\", "x": {"\\\\\":": 1}}', '{"x": ["{:", ":", ""], ":": {}}']
)
def test_colons_in_strings_do_not_make_reading_slow(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Body, "_parse_slowly")
    assert Body(text.encode()).fields == json.loads(text)


@pytest.mark.parametrize("text", ['{"x": [NaN, 1, 2, 3]}', '{"x": "long", "x": 1}', '{"x": [1e999, 22222]}'])
def test_what_can_only_be_read_slowly_has_a_lower_limit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_reader, "_MOST_SLOWLY", 20)
    with pytest.raises(TooLargeError, match=r"expected at most 20 bytes of JSON with NaN, .* or a key twice, found 21"):
        Body(text.encode())


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_what_was_estimated_at_most(kind: str) -> None:
    content = hostile(kind, MB // 2)
    estimated = parsed_bytes(content)
    tracemalloc.start()
    try:
        with suppress(RequestError, KeyError):
            body = Body(content)
            read("x", body.fields["instances"], TensorSpec("x", "float32", None), body)
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most <= estimated + 12 * len(content) + MB // 4  # orjson reserves 12 times the size, and uses what it counts


def test_more_json_than_is_read_in_one_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_reader, "MOST_BYTES", 20)
    assert parsed_bytes(b'{"instances":[1, 2]}') > 20
    with pytest.raises(TooLargeError, match="expected at most 20 bytes of JSON, found 21; larger inputs by gRPC"):
        parsed_bytes(b'{"instances": [1, 2]}')


def as_array(value: Any, dtype: str) -> Any:
    body = Body(json.dumps({"x": value}).encode())
    return read("x", body.fields["x"], TensorSpec("x", dtype, None), body)


WHOLE = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers_are_taken_up_to_the_limits_of_their_dtype_and_no_further(dtype: str) -> None:
    limits = np.iinfo(dtype)
    array = as_array([[limits.min, limits.max]], dtype)
    assert (array.dtype, array.tolist()) == (np.dtype(dtype), [[limits.min, limits.max]])
    assert to_lists("x", array) == [[limits.min, limits.max]]
    for beyond in (limits.min - 1, limits.max + 1):
        with pytest.raises(InputError, match=f"expected numbers that {dtype} has"):
            as_array([1, beyond], dtype)
    with pytest.raises(InputError, match=r"found 1\.0, a number with a fraction"):
        as_array([1, 1.0], dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_numbers_with_a_fraction_come_back_as_short_as_they_went(dtype: str) -> None:
    array = as_array([0, 0.5, -1.25, 1024], dtype)
    assert array.dtype == np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert to_lists("x", array) == [0.0, 0.5, -1.25, 1024.0]
    with pytest.raises(InputError, match=f"expected numbers that {dtype} has"):
        as_array([10**400], dtype)
    found = to_lists("x", as_array([float("nan"), float("inf"), float("-inf")], dtype))
    assert json.dumps(found) == "[NaN, Infinity, -Infinity]"


def test_float32_is_written_with_the_digits_it_has() -> None:
    assert to_lists("x", np.array([0.1, 1 / 3, 1e-45, 3.4028235e38], np.float32)) == [
        0.1,
        0.33333334,
        1e-45,
        3.4028235e38,
    ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_two_bytes_are_written_with_the_digits_they_need(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert to_lists("x", np.array([[0.1, 0.2], [0.5, -1e-3]]).astype(kind)) == [[0.1, 0.2], [0.5, -1e-3]]
    every = np.arange(1 << 16, dtype=np.uint16).view(kind)
    with np.errstate(invalid="ignore"):
        every = every[~np.isnan(every)]
    texts = [repr(one) for one in to_lists("x", every)]
    assert (np.array(texts, np.float64).astype(kind) == every).all()
    assert max(len(one.strip("-").partition("e")[0].replace(".", "").strip("0")) for one in texts) <= 5


def test_booleans_are_no_numbers_and_numbers_no_booleans() -> None:
    assert as_array([True, False], "bool").tolist() == [True, False]
    for value, dtype in (([1, 0], "bool"), ([True], "int32"), ([1.5, True], "float32")):
        with pytest.raises(InputError):
            as_array(value, dtype)


@pytest.mark.parametrize("value", [[], [[]], [[], []], [[[]], [[]]]])
def test_what_is_empty_has_a_shape_too(value: Any) -> None:
    for dtype in ("float32", "string", "int8"):
        assert as_array(value, dtype).shape == np.array(value).shape
        assert to_lists("x", as_array(value, dtype)) == value


def test_one_value_has_no_dimensions() -> None:
    assert (as_array(3, "int32").shape, as_array("a", "string").shape) == ((), ())
    assert to_lists("x", as_array("a", "string")) == "a"


def test_bytes_may_be_padded_or_not() -> None:
    assert as_array([{"b64": "YQ=="}, {"b64": "YQ"}, {"b64": ""}], "string").tolist() == [b"a", b"a", b""]


def test_base64_may_have_line_breaks_and_be_long() -> None:
    content = np.random.default_rng(0).bytes(1_000_001)
    texts = [base64.b64encode(content).decode(), base64.encodebytes(content).decode(), " Y W\r\n J j \t"]
    found = as_array([{"b64": text} for text in texts], "string").tolist()
    assert found == [content, content, b"abc"]
    for wrong in ("Y", "Y-J_", "YWJ=Yw==", "\u00e9AAA", base64.b64encode(content).decode() + "*AAA"):
        with pytest.raises(InputError, match="expected base64"):
            as_array([{"b64": wrong}], "string")


@pytest.mark.parametrize("dtype", ["complex64", "qint8", "complex128"])
def test_what_json_cannot_say_is_not_offered(dtype: str) -> None:
    with pytest.raises(NotImplementedError, match=f"JSON has no {dtype}; use gRPC"):
        as_array([1], dtype)
    with pytest.raises(InputError, match="a dtype that JSON has"):
        to_lists("x", np.zeros(1, np.complex64))


def test_many_rows_are_one_array_and_one_that_differs_is_noticed() -> None:
    rows = np.arange(30_000).reshape(10_000, 3)
    assert as_array(rows.tolist(), "int64").tolist() == rows.tolist()
    with pytest.raises(InputError, match="expected lists of one shape, found "):
        as_array([*rows.tolist(), *[[1, 2]] * 10_000], "int64")


@pytest.mark.parametrize("shape", [(5000, 0), (40, 300, 0), (3000, 1, 0), (5000, 2), (0, 7), (3,), ()])
def test_lists_without_a_value_are_written_in_pieces_too(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.int32)
    pieces = list(write_lists("y", array))
    assert json.loads(b"".join(pieces)) == array.tolist()
    assert max(piece.count(b",") for piece in pieces) < 2048
    assert is_small({"y": array}) == (json.dumps(array.tolist()).count("[") + array.size <= 1025)
