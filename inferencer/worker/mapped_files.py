"""MappedFiles: the data files of versions, mapped into this process.

A mapping stays for a while after its last version, because publishers reuse their old files, and mapping and unmapping
268 MB takes 30 ms.

Each call of `map` brings a descriptor from the supervisor, which holds the lock that keeps publishers from writing into
the file; the descriptor is closed with the last array or tensor of the bytes that the call returned. The mapping has
another descriptor, without a lock.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from paramsync.errors import GraphError
from paramsync.host import memory

_KEPT_SECONDS = 10.0  # how long a mapping without a version stays

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class MappedFiles:
    """Maps each file once. Any thread may call `map`; one thread calls `tend`."""

    def __init__(self) -> None:
        self._mappings: dict[tuple[int, int], _Mapping] = {}

    def map(self, descriptor: int, size: int, ranges: Sequence[tuple[int, int]]) -> Bytes:
        """Map the first `size` bytes of a file, and bring `ranges` (start, stop) into the page table.

        The descriptor is closed with the last reference to the bytes. Raises GraphError, OSError.
        """
        if not size:
            os.close(descriptor)
            return np.empty(0, np.uint8)
        lease = _Lease(descriptor)
        facts = os.fstat(descriptor)
        if facts.st_size < size:
            raise GraphError("a data file was cut while it was handed over")
        file_id = facts.st_dev, facts.st_ino
        mapping = self._mappings.get(file_id)
        if mapping is None or mapping.size != size:
            mapping = self._mappings[file_id] = _Mapping(descriptor, size)
        lease.mapping = mapping
        mapping.users.add(id(lease))
        for start, stop in ranges:
            mapping.bring_in(start, stop)
        return np.asarray(lease)

    def tend(self) -> bool:
        """Remove mappings that no version needs. Returns whether unused mappings are left for later."""
        late = time.monotonic() - _KEPT_SECONDS
        for file_id, mapping in list(self._mappings.items()):
            needless = not mapping.users and (mapping.used_at < late or mapping.is_gone)
            if needless and self._mappings.pop(file_id, None) is mapping:
                mapping.drop_pages()
        return any(not mapping.users for mapping in list(self._mappings.values()))


class _Mapping:
    """A read-only mapping of a file. A write to it would end the process."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self.users: set[int] = set()  # ids of leases: a reference would keep a lease alive
        self.used_at = 0.0
        self._file = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(self._file, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except BaseException:
            os.close(self._file)
            raise
        self._bytes = np.frombuffer(mapped, np.uint8)
        self._present: list[tuple[int, int]] = []

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    @property
    def address(self) -> int:
        return int(self._bytes.ctypes.data)

    @property
    def is_gone(self) -> bool:
        """Whether the file has been deleted, so that no publisher will write into it again."""
        return not os.fstat(self._file).st_nlink

    def bring_in(self, start: int, stop: int) -> None:
        """Bring a range into the page table, unless it is already there."""
        known = any(first <= start and stop <= last for first, last in self._present)
        if known and memory.is_present(self._bytes, start, stop):
            return
        if memory.make_readable(self._bytes, start, stop) and not known:
            self._present.append((start, stop))

    def drop_pages(self) -> None:
        """Release the pages without the GIL, so that unmapping takes no time."""
        memory.drop_pages(self._bytes)


class _Lease:
    """The owner of an array's bytes. It keeps the mapping and the file's lock alive."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.mapping: _Mapping | None = None

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Describe the bytes. They are declared writable, because dlpack does not export read-only arrays."""
        mapping = self.mapping
        assert mapping is not None
        return {"shape": (mapping.size,), "typestr": "|u1", "data": (mapping.address, False), "version": 3}

    def __del__(self) -> None:
        os.close(self._descriptor)
        if self.mapping is not None:
            self.mapping.used_at = time.monotonic()
            self.mapping.users.discard(id(self))
