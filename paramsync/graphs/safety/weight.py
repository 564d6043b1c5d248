"""What a graph would take in memory, read off its bytes: a file can say in two that there is one more node."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError

from paramsync.errors import UnsafeGraphError
from paramsync.rpc.wire_fields import Fields

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
        with suppress(DecodeError):
            _weigh(Fields(content, MOST // _FIELD), 0, len(content), kind, 0)


def _weigh(fields: Fields, at: int, end: int, inner: dict[int, Any], weight: int) -> int:
    """Add the weight of a message to `weight`; `inner` has the messages in its fields, None for fields of values."""
    while at < end:
        number, body, at = fields.field(at, end)
        size = at - body if fields.sized else 0
        weight += _FIELD
        within = inner.get(number, {})
        if within and size > _DEEP:
            weight = _weigh(fields, body, at, within, weight)
        elif within is not None:
            weight += size
        if weight > MOST:
            raise UnsafeGraphError(f"the graph is not safe: expected at most {MOST} bytes beside its constants")
    return weight
