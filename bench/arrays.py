"""The parameters of the benchmarks: their shapes, values that do not compress, and a plain copy of the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

_COLUMNS = 256


def shapes(size: int, count: int) -> list[tuple[int, int]]:
    """Return the shapes of `count` equal float32 matrices that together have about `size` bytes."""
    rows = max(1, round(size / count / _COLUMNS / 4))
    return [(rows, _COLUMNS)] * count


def random(shapes: Sequence[tuple[int, int]], *, seed: int) -> list[Array]:
    source = np.random.default_rng(seed)
    return [source.standard_normal(shape, dtype=np.float32) for shape in shapes]


def memcpy(values: Callable[[], Sequence[Array]]) -> Callable[[], None]:
    """Return a function that copies the arrays one after the other, on one thread, into pages that already exist."""
    places = [np.ones_like(one) for one in values()]

    def copy() -> None:
        for place, one in zip(places, values(), strict=True):
            np.copyto(place, one)

    return copy


def size(arrays: Iterable[Array]) -> int:
    """Return the number of bytes of all arrays together."""
    return sum(one.nbytes for one in arrays)
