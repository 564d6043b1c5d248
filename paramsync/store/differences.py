"""Compares two versions of a store: which parameters changed, and by how much. Needs no TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from paramsync import dtypes
from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.tensor_bytes import THREADS, each
from paramsync.dtypes import Array
from paramsync.store.store import Store
from paramsync.tensorbundle.index import OBJECT_GRAPH, Entry
from paramsync.version import Version

Kind = Literal["changed", "unchanged", "added", "removed", "reshaped"]
Magnitudes = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

EDGES = tuple([2.0**exponent for exponent in range(-40, 9)])
"""The edges of the bins of histograms: powers of two, from about 1e-12 to 256."""

_BINS = len(EDGES) - 1
_FIRST = -40  # the exponent of the first edge
_FRACTION, _BIAS = 52, 1023  # float64: the number of bits of the fraction, and the bias of the exponent
_ELEMENTS = 1 << 14  # how many elements are compared at once: intermediate results stay in a processor's cache
_SQUARED = 1e-100, 1e100  # the squares of numbers between these two can be represented in float64
_OPAQUE = {dtypes.STRING, dtypes.VARIANT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a parameter differs between two versions.

    kind           `reshaped` if the shape or the parts differ, or if the values cannot be compared
    dtype, shape   in the newer version, or in the older version if the newer lacks the parameter
    elements       the number of elements
    changed        how many elements have another value; for variants, which are opaque, all or none
    norm           the L2 norm of the difference; None if nothing can be subtracted, as for strings
    norm_before    the L2 norm in the older version; None if nothing had to be read
    relative       `norm` divided by `norm_before`; infinite if the older version was all zeros
    largest        the largest absolute difference of an element
    not_finite     elements with NaN or infinity in either version; they count only for `changed`
    histogram      for each two neighbours in EDGES, how many absolute differences lie between them, without zeros;
                   smaller differences are in the first bin, larger differences in the last
    """

    name: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    dtype_before: str | None = None
    shape_before: tuple[int, ...] | None = None
    elements: int
    changed: int = 0
    norm: float | None = None
    norm_before: float | None = None
    relative: float | None = None
    largest: float | None = None
    not_finite: int = 0
    histogram: tuple[int, ...] = ()


def differences(
    store: Store,
    old: Version,
    new: Version,
    *,
    threads: int = THREADS,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Difference]:
    """Compare all parameters of two versions.

    Returns changed parameters first: parameters with non-finite elements, then all other changed parameters by their
    relative change. Reshaped, added, removed and unchanged parameters follow.

    Locks the files of both versions, so that our publishers do not overwrite them. Reads tensors in portions and checks
    their checksums. Does not read a tensor if both versions share its file, and reads nothing if the records show the
    same parameters. Calls `advance`, on any thread, with 0 after each portion and with a tensor's size once the tensor
    is done; an error that `advance` raises ends the comparison. Raises UnknownVersionError if a version was pruned,
    CorruptCheckpointError, UnreadableError.
    """
    before, after = store.open(old, mapped=False), store.open(new, mapped=False)
    same = bool(new.checksum) and old.checksum == new.checksum
    found: list[Difference] = []

    def compare(name: str) -> None:
        found.append(_difference(name, before, after, same=same, look=lambda: advance(0)))
        advance(max((bundle.entries[name].size for bundle in (before, after) if name in bundle.entries), default=0))

    names = sorted((before.entries.keys() | after.entries.keys()) - {OBJECT_GRAPH})
    each(compare, names, threads=threads)
    return sorted(found, key=_order)


def _order(difference: Difference) -> tuple[Any, ...]:
    kinds: list[Kind] = ["changed", "reshaped", "added", "removed", "unchanged"]
    relative = 0.0 if difference.relative is None else difference.relative
    return kinds.index(difference.kind), -(math.inf if difference.not_finite else relative), difference.name


def _difference(name: str, before: Bundle, after: Bundle, *, same: bool, look: Callable[[], None]) -> Difference:
    entry, entry_before = after.entries.get(name), before.entries.get(name)
    if entry is None or entry_before is None:
        there = entry or before.entries[name]
        return _described(name, "removed" if entry is None else "added", there, entry_before)
    if not _is_comparable(entry_before, entry):
        return _described(name, "reshaped", entry, entry_before)
    if same or before.marks(name) == after.marks(name):
        return _described(name, "unchanged", entry, entry_before, _Sums(is_number=_is_number(entry), is_read=False))
    if not _has_values(entry):  # the values are opaque: compare the checksums of the bytes
        checksums = [[piece.crc32c for piece in each_entry.pieces] for each_entry in (entry_before, entry)]
        changed = 0 if checksums[0] == checksums[1] else math.prod(entry.shape)
        sums = _Sums(changed=changed, is_number=False)
        return _described(name, "changed" if changed else "unchanged", entry, entry_before, sums)
    sums = _Sums(is_number=_is_number(entry))
    for portion_before, portion in zip(before.portions(name, _ELEMENTS), after.portions(name, _ELEMENTS), strict=True):
        sums.add(portion_before, portion)
        look()
    return _described(name, "changed" if sums.changed else "unchanged", entry, entry_before, sums)


def _is_comparable(before: Entry, after: Entry) -> bool:
    """Return whether both entries have the same shape and parts, and values of one kind."""
    starts = [[part.start for part in entry.parts] for entry in (before, after)]
    shapes = [[piece.shape for piece in entry.pieces] for entry in (before, after)]
    kinds = [entry.dtype if entry.dtype in _OPAQUE else _has_values(entry) for entry in (before, after)]
    return before.shape == after.shape and starts[0] == starts[1] and shapes[0] == shapes[1] and kinds[0] == kinds[1]


def _has_values(entry: Entry) -> bool:
    """Return whether the values can be read as an array."""
    return dtypes.to_numpy(entry.dtype) is not None


def _is_number(entry: Entry) -> bool:
    return entry.dtype != dtypes.STRING and _has_values(entry)


def _described(name: str, kind: Kind, entry: Entry, before: Entry | None, sums: _Sums | None = None) -> Difference:
    return Difference(
        name=name,
        kind=kind,
        dtype=dtypes.name(entry.dtype),
        shape=entry.shape,
        dtype_before=None if before is None else dtypes.name(before.dtype),
        shape_before=None if before is None else before.shape,
        elements=math.prod(entry.shape),
        **({} if sums is None else sums.figures()),
    )


@dataclass(slots=True, eq=False)
class _Sums:
    """Sums up the difference of a tensor, portion after portion."""

    is_number: bool
    is_read: bool = True
    changed: int = 0
    norm: float = 0.0
    norm_before: float = 0.0
    largest: float = 0.0
    not_finite: int = 0
    finite: int = 0
    histogram: np.ndarray[tuple[int], np.dtype[np.int64]] = field(default_factory=lambda: np.zeros(_BINS, np.int64))

    def add(self, before: Array, after: Array) -> None:
        before, after = _plain(before), _plain(after)
        if not self.is_number:
            self.changed += int(np.count_nonzero(before != after))
            return
        with np.errstate(all="ignore"):  # no warnings, for example about infinity minus infinity
            self._add_numbers(before, after)

    def _add_numbers(self, before: Array, after: Array) -> None:
        wide_before, wide = _wide(before), _wide(after)
        is_other = before != after if before.dtype == after.dtype else wide_before != wide
        difference = wide - wide_before
        is_finite = np.isfinite(difference)
        if not is_finite.all():
            is_other &= ~(np.isnan(wide_before) & np.isnan(wide))
            self.not_finite += int(np.count_nonzero(~is_finite))
            wide_before, difference = wide_before[is_finite], difference[is_finite]
        self.finite += len(difference)
        self.norm_before = math.hypot(self.norm_before, _norm(np.abs(wide_before)))
        if not (changed := int(np.count_nonzero(is_other))):
            return
        self.changed += changed
        magnitudes = np.abs(difference)
        self.norm = math.hypot(self.norm, _norm(magnitudes))
        self.largest = max(self.largest, float(magnitudes.max(initial=0.0)))
        bins = (magnitudes.view(np.int64) >> _FRACTION) - (_BIAS + _FIRST)  # the exponents, read from their bits
        self.histogram += np.bincount(np.clip(bins, 0, _BINS - 1, out=bins), minlength=_BINS)
        self.histogram[0] -= len(magnitudes) - int(np.count_nonzero(magnitudes))

    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = {"changed": self.changed, "not_finite": self.not_finite}
        if not self.is_number or (self.not_finite and not self.finite):
            return figures
        relative = 0.0 if not self.norm else self.norm / self.norm_before if self.norm_before else math.inf
        figures |= {"norm": self.norm, "relative": relative, "largest": self.largest}
        figures["norm_before"] = self.norm_before if self.is_read else None
        return figures | {"histogram": tuple(self.histogram.tolist())}


def _plain(values: Array) -> Array:
    """Return quantized numbers, which are records with a single field, as the values of that field."""
    fields = values.dtype.fields
    return values.view(next(iter(fields.values()))[0]) if fields else values


def _wide(values: Array) -> Any:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _norm(magnitudes: Magnitudes) -> float:
    largest = float(magnitudes.max(initial=0.0))
    if not largest:
        return 0.0
    if _SQUARED[0] < largest < _SQUARED[1]:
        return math.sqrt(float(np.einsum("i,i->", magnitudes, magnitudes)))
    return largest * _norm(magnitudes / largest)
