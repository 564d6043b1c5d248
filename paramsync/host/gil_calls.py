"""Calls the kernel with the GIL kept, for files of a directory in memory.

Such a call takes a microsecond, for there is nothing to wait for. Each goes by an open descriptor of the directory, so
that no link in a path leads to a disk or over a network.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from paramsync.host import kernel, memory
from paramsync.host.kernel import Facts, Kernel, ShortStat

_SMALL = 1 << 16  # bytes that are read at once; for more the GIL is released
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_EMPTY_PATH, _NO_FOLLOW, _BASIC = 0x1000, 0x100, 0x7FF  # of statx
_STATX = struct.Struct("=28xH2xQQ48xqI4xqI12xII")  # mode, inode, size, changed, written, device
_LENGTH = struct.Struct("=16xH")  # of an entry of a directory
_NAME = 19  # where its name begins

_LIBC = ctypes.PyDLL(None, use_errno=True)  # in contrast to CDLL it keeps the GIL
_INT, _SIZE, _ADDRESS = ctypes.c_int, ctypes.c_ssize_t, ctypes.c_void_p
_CALLS = {  # what each returns and takes
    "statx": (_INT, (_INT, ctypes.c_char_p, _INT, ctypes.c_uint, _ADDRESS)),
    "openat": (_INT, (_INT, ctypes.c_char_p, _INT)),
    "read": (_SIZE, (_INT, _ADDRESS, _SIZE)),
    "getdents64": (_SIZE, (_INT, _ADDRESS, _SIZE)),
    "flock": (_INT, (_INT, _INT)),
    "close": (_INT, (_INT,)),
}


class Folder:
    """A directory that is looked at again and again. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None  # by device and inode the directory that was there last
        self._prompt: _Prompt | None = None

    def promptly(self) -> AbstractContextManager[None]:
        """In this block the thread keeps the GIL for files directly in the directory, if that is in memory.

        Should another directory take its name meanwhile, the block goes on with the directory from before.
        """
        known = _identity(self._path)
        if known != self._known:
            self._known, self._prompt = (None, None) if known is None else _opened(self._path)
        return nullcontext() if self._prompt is None else kernel.using(self._prompt, self._path)

    def close(self) -> None:
        """Close the descriptor until the next look."""
        if self._prompt is not None:
            self._prompt.end()
        self._known = self._prompt = None


class _Prompt(Kernel):
    """Calls by names in a directory, whose descriptor is closed with this object at the latest."""

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._facts = ctypes.create_string_buffer(256)
        self._content = ctypes.create_string_buffer(_SMALL)

    def end(self) -> None:
        """Close the descriptor."""
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)

    __del__ = end

    def names(self, directory: Path) -> list[str]:
        found = []
        listed = _call("openat", self._directory, b".", _LISTED, path=directory)  # if that is still permitted
        try:
            while size := _call("getdents64", listed, self._content, _SMALL, path=directory):
                entries = ctypes.string_at(self._content, size)
                at = 0
                while at < size:
                    found.append(os.fsdecode(entries[at + _NAME : entries.index(b"\0", at + _NAME)]))
                    at += _LENGTH.unpack_from(entries, at)[0]
        finally:
            _call("close", listed)
        return [name for name in found if name not in (".", "..")]

    def of_name(self, directory: Path, name: str) -> Facts:
        try:
            return self._asked(self._directory, os.fsencode(name), _NO_FOLLOW)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(directory / name)) from None

    def open(self, path: Path) -> int:
        return _call("openat", self._directory, os.fsencode(path.name), kernel.TO_READ, path=path)

    def of_descriptor(self, descriptor: int) -> Facts:
        return self._asked(descriptor, b"", _EMPTY_PATH)

    def share(self, descriptor: int) -> bool:
        try:
            _call("flock", descriptor, kernel.SHARED)
        except BlockingIOError:
            return False
        return True

    def read(self, descriptor: int, size: int) -> bytes:
        if size > _SMALL:
            return super().read(descriptor, size)
        return ctypes.string_at(self._content, _call("read", descriptor, self._content, size))

    def close(self, descriptor: int) -> None:
        _call("close", descriptor)

    def _asked(self, descriptor: int, name: bytes, flags: int, path: Path | None = None) -> Facts:
        _call("statx", descriptor, name, flags, _BASIC, self._facts, path=path)
        mode, inode, size, changed, changed_ns, written, written_ns, major, minor = _STATX.unpack_from(self._facts)
        device, seconds = os.makedev(major, minor), written + 1e-9 * written_ns  # as Python rounds them
        changed_ns, written_ns = changed * 10**9 + changed_ns, written * 10**9 + written_ns
        return ShortStat(mode, device, inode, size, seconds, written_ns, changed_ns)


def _opened(path: Path) -> tuple[tuple[int, int] | None, _Prompt | None]:
    """The identity of the directory at this path, None where it cannot be opened, and its calls, if it is in memory."""
    try:
        descriptor = os.open(path, _LISTED)
    except OSError:
        return None, None
    prompt = _Prompt(descriptor)
    found = os.fstat(descriptor)
    known = found.st_dev, found.st_ino
    return known, prompt if _works(prompt, descriptor, known) and memory.is_memory(found) else None


def _works(prompt: _Prompt, descriptor: int, known: tuple[int, int]) -> bool:
    """Whether this system has these calls and allows them: a sandbox may not."""
    if not _FUNCTIONS:
        return False
    try:
        found = prompt.of_descriptor(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == known


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _call(name: str, *arguments: object, path: Path | None = None) -> int:
    result = _FUNCTIONS[name](*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), *([] if path is None else [str(path)]))
    return result


def _functions() -> dict[str, Callable[..., int]]:
    """The calls by name; none where the system lacks one, or has others under these names."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return {}
    found: dict[str, Callable[..., int]] = {}
    for name, (returned, taken) in _CALLS.items():
        if (function := getattr(_LIBC, name, None)) is None:
            return {}
        function.restype, function.argtypes = returned, taken
        found[name] = function
    return found


_FUNCTIONS = _functions()
