"""JSON bodies: the values and the refusals are those of Python's own parser, and memory is bounded beforehand."""

from __future__ import annotations

import json
import random
import string
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest

from inferencer.protocols import json_reader
from inferencer.protocols.json_arrays import read
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
