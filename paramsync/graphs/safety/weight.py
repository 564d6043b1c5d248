"""What a graph would take in memory, read off its bytes: a file can say in two that there is one more node."""

from __future__ import annotations

from typing import Any

from paramsync.errors import UnsafeGraphError

SMALL = 32 << 20
"""Bytes that are parsed whatever they are."""

MOST = 128 << 20
"""Bytes of structure, constants aside: ten times what large graphs have."""

_FIELD = 64  # bytes that each field takes at least once it is parsed, about
_DEEP = 4096  # bytes of a message before it is looked into

# Where the values of constants are, by the numbers of fields: all else is structure.
_TENSOR: dict[int, Any] = {4: None}
_NODE = {5: {2: {8: _TENSOR}}}
GRAPH_DEF = {1: _NODE, 2: {1: {3: _NODE}}}
GRAPH_FILE = {1: GRAPH_DEF, 5: {2: None, 3: None}}
META_GRAPH = {2: GRAPH_DEF}
SAVED_MODEL = {2: META_GRAPH}


def check_weight(content: bytes, kind: dict[int, Any]) -> None:
    """Raise UnsafeGraphError where a message of this kind is large and not for its constants.

    What is malformed is left to be parsed.
    """
    if len(content) > SMALL:
        _weigh(memoryview(content), kind, 0)


def _weigh(content: memoryview, inner: dict[int, Any], weight: int) -> int:
    """Add the weight of a message to `weight`; `inner` has the messages in its fields, None for fields of values."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        kind = tag & 7
        size = 0
        if kind == 0:
            _, at = _varint(content, at)
        elif kind == 2:
            size, at = _varint(content, at)
        else:
            at += {1: 8, 5: 4}.get(kind, len(content))
        weight += _FIELD
        within = inner.get(tag >> 3, {})
        if within and size > _DEEP:
            weight = _weigh(content[at : at + size], within, weight)
        elif within is not None:
            weight += size
        at += size
        if weight > MOST:
            raise UnsafeGraphError(f"the graph is not safe: expected at most {MOST} bytes beside its constants")
    return weight


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """Decode the varint at `at`: its value, and where it ends."""
    value = shift = 0
    while at < len(content) and shift < 64:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, at
