"""Verification: which bytes of a version are checked before it serves, and how, a portion at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from paramsync import dtypes
from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.tensor_bytes import PROCESSORS, THREADS
from paramsync.sources.source import GraphSpec, Progress, ProgressCallback
from paramsync.version import Version

_NOT_NUMBERS = {dtypes.BOOL, dtypes.STRING, dtypes.VARIANT}
_LARGE = 4 << 20  # bytes of an embedding: a smaller one is brought in with what lies beside it
_PORTION = 64 << 20  # bytes that are checked at once; between portions progress is told, and a restore may be given up
_THREADS = max(1, min(THREADS, PROCESSORS // 2))
"""Checking takes processors, and the GIL, from threads that answer: `docs/performance.md` has figures."""


def is_untouched(version: Version, bundle: Bundle) -> bool:
    """Whether the seal shows that files in memory have the bytes, and the values, that our publisher looked at."""
    return bool(version.checksum and version.finite and version.seal) and version.seal == bundle.seal


def without_embeddings(graph: GraphSpec, bundle: Bundle, keys: Sequence[str]) -> tuple[str, ...]:
    """The tensors that requests read whole. Large embeddings in memory come as requests read rows of them."""
    large = {
        key
        for spec, key in zip(graph.parameters, keys, strict=True)
        if spec.name in graph.embeddings and bundle.entries[key].size >= _LARGE
    }
    return tuple(key for key in keys if key not in large)


def verify(bundle: Bundle, keys: Collection[str], tell: ProgressCallback, *, finite: bool = True) -> None:
    """Check checksums and, with `finite`, values of these tensors. Raises CorruptCheckpointError, ParameterError."""
    _by_portions("verifying", bundle, keys, tell, lambda names: bundle.verify(names, finite=finite, threads=_THREADS))


def bring_in(bundle: Bundle, keys: Collection[str], needed: Collection[str], tell: ProgressCallback) -> None:
    """Bring an untouched version into the page table, and look at what is no number, as its publisher did not."""
    others = [key for key in keys if any(piece.dtype in _NOT_NUMBERS for piece in bundle.entries[key].pieces)]
    if others:
        bundle.verify(others, threads=_THREADS)
    _by_portions("mapping", bundle, needed, tell, bundle.prefault)
    bundle.check(set(keys).difference(needed))


def _by_portions(
    phase: str, bundle: Bundle, keys: Collection[str], tell: ProgressCallback, work: Callable[[list[str]], None]
) -> None:
    sizes = {key: bundle.entries[key].size for key in keys}
    bytes_done = variables_done = 0
    for names in ([], *_portions(sizes)):
        if names:
            work(names)
        bytes_done += sum(sizes[name] for name in names)
        variables_done += len(names)
        tell(
            Progress(
                phase,
                bytes_done=bytes_done,
                bytes_total=sum(sizes.values()),
                variables_done=variables_done,
                variables_total=len(sizes),
            )
        )


def _portions(sizes: dict[str, int]) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name, one in sizes.items():
        names.append(name)
        size += one
        if size >= _PORTION:
            yield names
            names, size = [], 0
    if names:
        yield names
