"""Lists of lists as arrays, as soon as they are read: so they take a tenth of the memory, which is freed at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Part = list[Any] | Array | dict[str, Array]
"""Elements of a list: as they are; as an array; of objects that have the same keys, such arrays by key."""

B64 = "b64"
_RANK = 32
_MOST_KEYS = 64  # of objects that become arrays, each of which takes more than a number does
_SMALLER = (np.int8, np.int16, np.int32)


@dataclass(slots=True)
class Long:
    """A list of many elements, which were read some at a time."""

    parts: list[Part]

    def __len__(self) -> int:
        return sum(map(size, self.parts))

    def __iter__(self) -> Iterator[Any]:
        """The elements as JSON's values."""
        for part in self.parts:
            if isinstance(part, dict):
                columns = [column.tolist() for column in part.values()]
                yield from (dict(zip(part, row, strict=True)) for row in zip(*columns, strict=True))
            else:
                yield from part if isinstance(part, list) else part.tolist()

    def taken(self) -> Iterator[Part]:
        """Each part, which is let go of by then."""
        for at, part in enumerate(self.parts):
            self.parts[at] = []
            yield part


def size(part: Part) -> int:
    """How many elements."""
    return len(next(iter(part.values()))) if isinstance(part, dict) else len(part)


def is_numbers(part: Part) -> bool:
    """Whether nothing of it takes more memory than a number."""
    arrays = part.values() if isinstance(part, dict) else (part,)
    return all(isinstance(one, np.ndarray) and one.dtype.kind != "O" for one in arrays)


def is_b64(value: Any) -> bool:
    """Whether it is the way in which JSON carries bytes."""
    return isinstance(value, dict) and value.keys() == {B64} and isinstance(value[B64], str)


def packed(values: list[Any]) -> Part:
    """The elements of a list as arrays, where they can be: of numbers, of booleans, or of strings and bytes."""
    if len(values) == 1 and isinstance(values[0], Long):
        whole = _whole(values[0].parts)
        return values if whole is None else whole[np.newaxis]
    if isinstance(values[0], dict) and not is_b64(values[0]):
        return _by_key(values) or values
    try:
        shape, leaves = flat(values)
    except ValueError:
        return values
    array = of_leaves(leaves)
    return values if array is None else array.reshape(shape)


class RaggedError(ValueError):
    """Lists that are no array. Says why: what was expected, and what was found."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


def flat(value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The shape that lists in lists have, and what is in the innermost. Raises RaggedError where they have none."""
    shape: list[int] = []
    level = [value]
    while list in (kinds := set(map(type, level))):
        lengths = {len(one) for one in level if type(one) is list}
        if len(kinds) > 1 or len(lengths) > 1:
            raise RaggedError("lists of one shape", f"ragged lists at level {len(shape) + 1}")
        if len(shape) == _RANK:
            raise RaggedError(f"at most {_RANK} dimensions", "more")
        shape += lengths
        level = level[0] if len(level) == 1 else list(chain.from_iterable(level))
    return tuple(shape), level


def of_leaves(leaves: Sequence[Any]) -> Array | None:
    """An array of whole numbers, of numbers, of booleans, or of strings and bytes. None for what is none of them."""
    kinds = set(map(type, leaves))
    try:
        if kinds == {int}:
            return _of_whole(leaves)
        if kinds <= {int, float}:
            return np.array(leaves, np.float64)
    except OverflowError:  # beyond what any dtype has
        return None
    if kinds == {bool}:
        return np.array(leaves, np.bool_)
    if not kinds <= {str, dict} or (dict in kinds and not all(type(one) is str or is_b64(one) for one in leaves)):
        return None
    array = np.empty(len(leaves), object)
    array[:] = leaves
    return array


def _of_whole(leaves: Sequence[int]) -> Array:
    """As small as can be. Raises OverflowError."""
    try:
        array = np.array(leaves, np.int64)
    except OverflowError:
        if min(leaves) < 0:
            raise
        return np.array(leaves, np.uint64)
    least, most = int(array.min()), int(array.max())
    for dtype in _SMALLER:
        if np.iinfo(dtype).min <= least and most <= np.iinfo(dtype).max:
            return array.astype(dtype)
    return array


def _by_key(rows: list[Any]) -> dict[str, Array] | None:
    keys = rows[0].keys()
    if not 0 < len(keys) <= _MOST_KEYS or not all(isinstance(row, dict) and row.keys() == keys for row in rows):
        return None
    found: dict[str, Array] = {}
    for key in keys:
        part = packed([row[key] for row in rows])
        if not isinstance(part, np.ndarray):
            return None
        found[key] = part
    return found


def _whole(parts: list[Part]) -> Array | None:
    """All of them as one array."""
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    kinds = {part.dtype.kind for part in arrays if part.size}
    if len(arrays) < len(parts) or len({part.shape[1:] for part in arrays}) > 1:
        return None
    if len(kinds) > 1 and kinds != {"i", "f"}:
        return None
    return np.concatenate(arrays) if arrays else np.empty(0)
