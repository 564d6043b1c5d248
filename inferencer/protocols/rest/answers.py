"""Arrays that answer to the JSON that TensorFlow Serving writes, in pieces, so that other threads have their turn."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from paramsync.errors import InputError
from paramsync.inference.questions import Answer

from ..tfs.classify import CLASSES, OUTPUTS, SCORES
from .arrays import Array, listed

_VALUES = 1024  # in a piece: it takes milliseconds
_BYTES = 1 << 15  # of strings in an answer that is small


def written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def is_small(answer: Answer) -> bool:
    """Whether it is written within a few milliseconds."""
    arrays = answer.values()
    if sum(map(_values, arrays)) > _VALUES:
        return False
    return sum(len(one) for array in arrays if array.dtype.kind == "O" for one in array.flat) <= _BYTES


def columns(answer: Answer) -> Iterator[bytes]:
    """A bare value where there is one output, else an object. Raises InputError for a dtype that JSON lacks."""
    if len(answer) == 1:
        yield from _nested(*next(iter(answer.items())))
        return
    for at, (name, array) in enumerate(answer.items()):
        yield (b", " if at else b"{") + written(name) + b": "
        yield from _nested(name, array)
    yield b"}"


def rows(answer: Answer) -> Iterator[bytes]:
    """For each row a bare value where there is one output, else an object. Raises InputError, also without rows."""
    counts = {array.shape[0] if array.ndim else None for array in answer.values()}
    if len(counts) > 1 or None in counts:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in answer.items())
        raise InputError("outputs", expected="as many rows in each; ask with 'inputs'", found=shapes)
    if len(answer) == 1:
        yield from _nested(*next(iter(answer.items())))
        return

    def piece(first: int, end: int) -> list[Any]:
        lists = [listed(name, array[first:end]) for name, array in answer.items()]
        return [dict(zip(answer, row, strict=True)) for row in zip(*lists, strict=True)]

    [count] = counts
    yield from _pieces(count or 0, max(1, sum(map(_values, answer.values()))), piece)


def results(answer: Answer) -> Iterator[bytes]:
    """Of classify, pairs of class and score for each example; of regress, a value for each."""
    if OUTPUTS in answer:
        yield from _nested(OUTPUTS, answer[OUTPUTS].reshape(-1))
        return
    shape = next(iter(answer.values())).shape
    labels = answer[CLASSES] if CLASSES in answer else np.full(shape, b"", object)
    scores = answer[SCORES] if SCORES in answer else np.zeros(shape, np.float32)

    def piece(first: int, end: int) -> list[Any]:
        names = [[one.decode(errors="replace") for one in row] for row in labels[first:end].tolist()]
        both = zip(names, listed(SCORES, scores[first:end]), strict=True)
        return [list(map(list, zip(*row, strict=True))) for row in both]

    yield from _pieces(shape[0], max(1, _values(scores)), piece)


def _nested(name: str, array: Array) -> Iterator[bytes]:
    if not array.ndim or (count := _values(array)) <= _VALUES:
        yield written(listed(name, array))
    elif count // len(array) > _VALUES:
        for at, row in enumerate(array):
            yield b", " if at else b"["
            yield from _nested(name, row)
        yield b"]"
    else:
        yield from _pieces(len(array), count, lambda first, end: listed(name, array[first:end]))


def _values(array: Array) -> int:
    """How many it is written as, lists among them: there may be many of these without any number in them."""
    return sum(math.prod(array.shape[: rank + 1]) for rank in range(array.ndim)) or 1


def _pieces(count: int, size: int, piece: Any) -> Iterator[bytes]:
    """A list of `count` elements, which have `size` values together; `piece` gives those from one to another."""
    step = max(1, count * _VALUES // size)
    yield b"["
    for at in range(0, count, step):
        yield (b", " if at else b"") + written(piece(at, at + step))[1:-1]
    yield b"]"
