"""The manifest of a version in a bucket: the version's record and index, and the objects with its data."""

from __future__ import annotations

import base64
import hashlib
import heapq
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paramsync.errors import RemoteError
from paramsync.version import Version

LIMIT = 128 << 20  # bytes of a manifest

_EDGES = 256  # deltas of a manifest; further deltas are not read


@dataclass(frozen=True, slots=True)
class Whole:
    """A packed object with all tensors of version `number`."""

    number: int
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Edge:
    """An object with the delta from version `base`, whose tensors have the checksum `checksum`, to version `number`.

    `crc` is the CRC-32C of the object in hexadecimal; "" if an earlier release wrote it.
    """

    base: int
    checksum: str
    number: int
    name: str
    size: int
    crc: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """How to get a version.

    record  the text of the version's record
    index   the index of its tensors, as they lie in a packed object
    graph   name of the object with the version's graph; "" for a version without a graph
    whole   the object with all tensors of this version, or of an earlier version with the same names, dtypes and shapes
    edges   deltas from earlier versions to this version, or to versions in between
    """

    record: str
    index: bytes
    graph: str
    whole: Whole
    edges: tuple[Edge, ...]

    def objects(self) -> tuple[str, ...]:
        """Return the names of all objects that may be needed to get this version."""
        names = [self.graph, self.whole.name, *(edge.name for edge in self.edges)]
        return tuple(dict.fromkeys(filter(None, names)))

    def version(self) -> Version:
        """Return the version's record. Raises RemoteError if it is malformed."""
        try:
            return Version.from_json(self.record)
        except (ValueError, RecursionError) as error:
            raise RemoteError(f"a manifest: expected the record of a version, found {str(error)[:200]}") from error

    def to_json(self) -> bytes:
        values = asdict(self) | {"index": base64.b64encode(self.index).decode()}
        return json.dumps(values).encode()


def from_json(content: bytes, *, name: str, digest: str) -> Manifest:
    """Read the manifest with this digest from the object `name`. Raises RemoteError."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise RemoteError(f"{name}: expected the manifest that the state names, found other bytes")
    try:
        values: dict[str, Any] = json.loads(content)
        return Manifest(
            record=_is(str, values["record"]),
            index=base64.b64decode(values["index"], validate=True),
            graph=_is(str, values["graph"]),
            whole=Whole(**_fields(Whole, values["whole"])),
            edges=tuple([Edge(**_fields(Edge, edge)) for edge in values["edges"][:_EDGES]]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RemoteError(f"{name}: expected a manifest, found {type(error).__name__}: {error}") from error


def route(edges: Iterable[Edge], known: Iterable[int], number: int, most: int | None = None) -> tuple[Edge, ...] | None:
    """Return the chain of deltas from any `known` version to version `number` that has the fewest bytes.

    Of several such chains, one with the fewest deltas is returned; None if no chain has fewer than `most` bytes.
    """
    ahead: dict[int, list[Edge]] = {}
    for edge in edges:
        if edge.number > edge.base:
            ahead.setdefault(edge.base, []).append(edge)
    turn = itertools.count()  # decides between equal chains, because edges have no order
    queue: list[tuple[int, int, int, int, tuple[Edge, ...]]] = [(0, 0, next(turn), base, ()) for base in known]
    done = set()
    while queue:
        cost, _, _, at, way = heapq.heappop(queue)
        if most is not None and cost >= most:
            return None
        if at == number:
            return way
        if at not in done:
            done.add(at)
            for edge in ahead.get(at, ()):
                heapq.heappush(queue, (cost + edge.size, len(way) + 1, next(turn), edge.number, (*way, edge)))
    return None


def useful(edges: Sequence[Edge], number: int, most: int) -> frozenset[Edge]:
    """Return the deltas that are part of a chain of fewer than `most` bytes to version `number`."""
    bytes_from = {number: 0}
    for edge in sorted(edges, key=lambda edge: edge.base, reverse=True):
        if edge.number in bytes_from:
            size = edge.size + bytes_from[edge.number]
            bytes_from[edge.base] = min(size, bytes_from.get(edge.base, size))
    return frozenset([edge for edge in edges if edge.size + bytes_from.get(edge.number, most) < most])


def _fields(kind: type[Whole | Edge], values: Any) -> dict[str, Any]:
    given = {key: values[key] for key in kind.__slots__ if key in values or key != "crc"}
    return {key: _is(str if key in ("name", "checksum", "crc") else int, value) for key, value in given.items()}


def _is(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind or (kind is int and not 0 <= value < 1 << 63):
        raise ValueError(f"expected {kind.__name__}, found {value!r:.50}")
    return value
