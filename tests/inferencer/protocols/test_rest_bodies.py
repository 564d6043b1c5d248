"""JSON that is read in pieces: the same values and the same refusals as Python's parser has, in bounded memory."""

from __future__ import annotations

import gc
import json
import random
import string
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import thread_time
from typing import Any

import pytest

from inferencer.protocols.json_arrays import read
from inferencer.protocols.json_reader import Body, _Reader, parsed_bytes
from paramsync.errors import InputError, RequestError
from paramsync.graphs.specs import TensorSpec
from tests.support.hostile_bodies import KINDS, hostile, plain
from tests.support.http import MB


@pytest.fixture(scope="module", autouse=True)
def as_in_a_worker() -> Iterator[None]:
    """What was imported is no work for the garbage collector."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of forty bytes, so that all that is cut out of large bodies is cut out of small ones."""
    monkeypatch.setattr("inferencer.protocols.json_reader.WINDOW", 40)
    monkeypatch.setattr("inferencer.protocols.json_reader._STEP", 7)
    monkeypatch.setattr("inferencer.protocols.json_reader._FAR", 31)


LEAVES = (
    lambda draw: draw.randint(-300, 300),
    lambda draw: draw.choice([1 << 40, -(1 << 62), 1 << 63, (1 << 64) + 1, 10**30]),
    lambda draw: draw.choice([0.5, -1e300, 1e-7, float("inf"), 3.0]),
    lambda draw: draw.choice([True, False, None]),
    lambda draw: "".join(
        draw.choices(string.printable + 'é\N{SNOWMAN}\N{GRINNING FACE}[]{},:"\\', k=draw.randint(0, 40))
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
    indent, ascii_only = draw.choice([None, None, 1]), draw.random() < 0.5
    return json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode()


def test_what_is_read_in_pieces_is_what_it_is_as_a_whole(tiny: None) -> None:
    draw = random.Random(1)
    for _ in range(60):
        content = written(draw)
        assert plain(Body(content).fields) == plain(json.loads(content)), content


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


def test_what_is_no_json_is_refused_in_pieces_as_it_is_as_a_whole(tiny: None) -> None:
    draw = random.Random(2)
    refused = 0
    for _ in range(150):
        content = bytearray(written(draw))
        for _ in range(draw.randint(1, 2)):
            at = draw.randrange(len(content))
            content[at : at + draw.randint(0, 2)] = draw.choice(
                [b"", b"[", b"]", b"{", b"}", b",", b'"', b"\\", b"\xff", b" ", b":", b"1"]
            )
        expected = as_python_reads_it(bytes(content))
        try:
            found = plain(Body(bytes(content)).fields)
        except RequestError:
            found = None
        assert repr(found) == repr(plain(expected)), bytes(content)
        refused += expected is None
    assert refused > 30


@pytest.mark.parametrize("spec", ["float32", "float64", "int64", "uint64", "string", "bool"])
def test_arrays_are_the_same_however_many_pieces_they_come_in(
    tiny: None, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    draw = random.Random(3)
    refused = 0
    for _ in range(100):
        leaf = draw.choice(LEAVES)
        rows = [[leaf(draw) for _ in range(2)] for _ in range(draw.randint(1, 12))]
        if draw.random() < 0.2:
            rows[draw.randrange(len(rows))][0] = draw.choice(LEAVES)(draw)
        content = json.dumps({"x": rows}).encode()
        found: list[Any] = []
        for window in (40, 1 << 15):
            monkeypatch.setattr("inferencer.protocols.json_reader.WINDOW", window)
            body = Body(content)
            try:
                array = read("x", body.fields["x"], TensorSpec("x", spec, None), body)
                found.append((array.dtype, array.tolist()))
            except InputError:
                found.append("refused")
        assert repr(found[0]) == repr(found[1]), content
        refused += found[0] == "refused"
    assert 0 < refused < 100


def given(content: bytes) -> None:
    """Read it as the server does, whether it is refused or not."""

    with suppress(RequestError, KeyError):
        body = Body(content)
        read("x", body.fields["instances"], TensorSpec("x", "float32", None), body)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_what_was_estimated_at_most(kind: str) -> None:
    content = hostile(kind, MB // 2)
    estimated = parsed_bytes(content)
    tracemalloc.start()
    try:
        given(content)
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most <= estimated


def test_what_objects_and_strings_take_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferencer.protocols.json_reader.MOST_UNPACKED", 4 * MB)
    for kind in ("objects", "strings", "ragged", "all sorts", "keys"):
        with pytest.raises(InputError, match="expected what takes 4 MB of memory, found more of objects"):
            plain(Body(hostile(kind, MB)).fields)
    body = Body(hostile("digits", MB))
    assert read("x", body.fields["instances"], TensorSpec("x", "float32", None), body).size > 500_000


@pytest.mark.parametrize("kind", KINDS)
def test_time_is_linear_in_the_size(kind: str) -> None:
    """Four times as much takes no more than a dozen times as long, where it would be sixteen if it were quadratic."""

    def seconds(size: int) -> float:
        content, least = hostile(kind, size), 9.0
        for _ in range(3):
            began = thread_time()
            given(content)
            least = min(least, thread_time() - began)
        return least

    few, many = seconds(MB // 8), seconds(MB // 2)
    assert many < 12 * few + 0.05


@pytest.mark.parametrize("text", ["a", "\\n", "a\\n", "\\u00e4", "\\\\", "\N{SNOWMAN}", "[{,"])
def test_a_long_string_takes_no_more_than_a_dozen_times_what_python_takes_for_it(text: str) -> None:
    content = f'{{"instances": "{text * (2 * MB // len(text))}"}}'.encode()

    def seconds(read: Callable[[bytes], object]) -> float:
        least = 9.0
        for _ in range(3):
            began = thread_time()
            read(content)
            least = min(least, thread_time() - began)
        return least

    assert Body(content).fields == json.loads(content)
    assert seconds(Body) < 12 * seconds(json.loads) + 0.005


@pytest.mark.parametrize("last", ["1.5]}", "1.5}", "1e39]}", '"a"]}', "1" + "0" * 30 + "]}"])
def test_a_large_body_is_gone_once_nobody_has_it_without_a_collection_of_garbage(last: str) -> None:
    content = ('{"inputs": [' + ", ".join(["1.5", "2"] * 20_000) + ", " + last).encode()
    gc.collect()
    gc.disable()
    try:
        with suppress(RequestError, InputError):
            _floats(content)
        assert [one for one in gc.get_objects() if isinstance(one, _Reader)] == []
    finally:
        gc.enable()


def _floats(content: bytes) -> None:
    body = Body(content)
    read("inputs", body.listed("inputs"), TensorSpec("x", "float32", None), body)
