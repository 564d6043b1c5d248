"""The state object: no content of it crashes a reader, or leads the reader out of the bucket's folder."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramsync.errors import RemoteError
from paramsync.remote import state
from paramsync.remote.state import Listed, State

A = "a" * 32
VERSION = Listed(7, "versions/1/7.json", "0" * 64)
STATE = State(A, 1, 2, A, A, (VERSION,), {"data/1/7": (5, 7), "graphs/1/7.pb": (7, 7)}, ("data/1/6",), {"pin": 7})


def changed(**values: Any) -> bytes:
    return json.dumps({**json.loads(STATE.to_json()), **values}).encode()


def test_a_state_is_read_as_it_was_written() -> None:
    assert state.from_json(STATE.to_json()) == STATE


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"format": 2}, "upgrade"),
        ({"format": "x"}, "found other JSON, of somebody else"),
        ({"run": "../x"}, "run"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"sequence": 1 << 63}, "sequence"),
        ({"versions": {}}, "versions"),
        ({"ended": "soon"}, "ended"),
        ({"ended_at": "soon"}, "ended_at"),
        ({"versions": [1]}, "JSON object"),
        ({"choices": []}, "JSON object"),
        ({"condemned": ["data/1/7"]}, "condemned"),
        ({"condemned": ["state.json"]}, "name"),
        ({"condemned": ["data/1/../../x"]}, "name"),
        ({"versions": [{"number": 1, "manifest": "/etc/passwd", "digest": "0" * 64}]}, "manifest"),
        ({"objects": {"data/1/7": [8, 9]}}, "listed version"),
        ({"objects": {"data/1/7": [7]}}, "whole number"),
        ({"choices": {"pinned": "x"}}, "pinned"),
        (
            {"choices": {"labels": {"a b": 7}}},
            "expected a label of 1 to 64 letters, digits, '_', '.' and '-', found 'a b'",
        ),
        ({"choices": {"labels": {"": 7}}}, "expected a label"),
        ({"choices": {"labels": {"a": -1}}}, "whole number"),
        ({"objects": {"../x": [7, 7]}}, "name"),
        ({"objects": []}, "JSON object"),
        ({"versions": [json.loads(STATE.to_json())["versions"][0]] * 2}, "ascending"),
    ],
)
def test_a_state_that_contradicts_the_rules_is_refused_with_its_reason(values: dict[str, Any], why: str) -> None:
    with pytest.raises(RemoteError, match=why):
        state.from_json(changed(**values))


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 10_000, b"{}", b" " * (state.LIMIT + 1)])
def test_what_is_no_state_is_refused(content: bytes) -> None:
    with pytest.raises(RemoteError, match="expected"):
        state.from_json(content)


def test_a_state_with_one_bit_changed_is_refused() -> None:
    content = STATE.to_json()
    for at in range(len(content)):
        for bit in range(8):
            changed = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
            try:
                found = state.from_json(changed)
            except RemoteError:
                continue
            assert found == STATE  # a space became another one


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_any_value_in_place_of_any_field_is_read_or_refused(value: Any) -> None:
    for key in json.loads(STATE.to_json()):
        with suppress(RemoteError):
            state.from_json(changed(**{key: value}))


def test_operators_may_choose_versions_until_there_is_no_room_for_those_to_come() -> None:
    numbers = range(1, 40)
    versions = tuple(Listed(100 * at, f"versions/1/{A[:8]}-{100 * at}.json", "0" * 64) for at in numbers)
    objects = {
        f"deltas/1/{A[:8]}-{100 * at}-{100 * at + old}": (100 * at, 100 * at + 1)
        for at in numbers
        for old in range(200)
    }
    found = State(A, 1, 2, A, A, versions, objects)
    for at in range(1, 11):
        found = found.choose(A, {"labels": {**found.labels, str(at): 100 * at}})
    with pytest.raises(RemoteError, match="no room to keep one more version: unpin or unlabel one of 100, 200, "):
        found.choose(A, {"labels": {**found.labels, "11": 1100}})
    kept = {name: needed for name, needed in objects.items() if needed[0] <= 1200}
    names = tuple(f"deltas/1/{A[:8]}-{at}-{at + 64}" for at in range(10**6, 10**6 + 600))
    assert len(State(A, 1, 2, A, A, versions, kept, names, found.choices).to_json()) < state.LIMIT
    assert found.choose(A, {"labels": {"1": 100}, "pinned": 200}).pinned == 200


def test_a_state_too_large_to_be_read_is_never_written() -> None:
    names = tuple(f"data/1/{'x' * 150}{at}" for at in range(2000))
    with pytest.raises(RemoteError, match="at most"):
        State(A, 1, 2, A, A, condemned=names).to_json()
