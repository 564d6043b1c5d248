"""Computes digests of tensors and checkpoints, on a few threads. A digest, unlike a checksum, cannot be forged.

The digest of a tensor hashes the digests of its portions of 4 MiB. The digest of a checkpoint hashes a line for each
tensor: name, dtype, shape, size and digest, but not its place in the file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paramsync.checkpoint.tensor_bytes import PORTION, THREADS, each
from paramsync.dtypes import Array
from paramsync.tensorbundle.index import Entry

_PORTION_OF, _TENSOR_OF, _CHECKPOINT_OF = (
    b"portion\0",
    b"tensor\0",
    b"checkpoint\0",
)  # prefixes of the hashed bytes: a digest of one kind never equals a digest of another kind
assert PORTION == 4 << 20  # another size would change the digests of the same tensors


def of_tensors(
    sizes: Sequence[int],
    read: Callable[[int, int, int], memoryview | Array],
    *,
    threads: int = THREADS,
    done: Callable[[int], object] = lambda tensor: None,
) -> list[bytes]:
    """Return the digest of each tensor. Starts with the last tensors, as `tensor_bytes.write` does.

    `read` returns the bytes of a tensor from one offset to another; `done` is called with the number of each tensor
    once the whole tensor is hashed. Both are called on any thread; their errors are raised here.
    """
    starts = [range(0, max(size, 1), PORTION) for size in sizes]  # an empty tensor has a portion, too
    portions = [[b""] * len(of_one) for of_one in starts]
    counts = [itertools.count(1) for _ in sizes]  # `next` is atomic: exactly one thread gets the last number
    digests = [b""] * len(sizes)

    def work(place: tuple[int, int]) -> None:
        tensor, start = place
        content = read(tensor, start, min(start + PORTION, sizes[tensor]))
        portions[tensor][start // PORTION] = _digest(_PORTION_OF, content)
        del content
        if next(counts[tensor]) == len(starts[tensor]):
            digests[tensor] = _digest(_TENSOR_OF, b"".join(portions[tensor]))
            done(tensor)

    places = [(tensor, start) for tensor, of_one in enumerate(starts) for start in of_one]
    each(work, reversed(places), threads=min(threads, 1 + sum(sizes) // PORTION))
    return digests


def of_checkpoint(entries: Mapping[str, Entry], digests: Mapping[str, bytes]) -> str:
    """Return the digest of a checkpoint, in hex, from the digests of its tensors. Every tensor must be in one piece."""
    whole = hashlib.sha256(_CHECKPOINT_OF)
    for name, entry in sorted(entries.items(), key=lambda item: item[0].encode()):
        line = json.dumps([name, entry.dtype, list(entry.shape), entry.size, digests[name].hex()])
        whole.update(line.encode() + b"\n")
    return whole.hexdigest()


def _digest(kind: bytes, content: bytes | memoryview | Array) -> bytes:
    digest = hashlib.sha256(kind)
    digest.update(content.data if isinstance(content, np.ndarray) else content)  # releases the GIL
    return digest.digest()
