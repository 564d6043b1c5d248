"""Seals graph files with a checksum at their end, and writes those of a store again where they were damaged."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from paramsync.checkpoint.seal import FileStamp
from paramsync.host import files

_log = logging.getLogger("paramsync.store")
# Field 15 of the message, of 32 bytes, behind all others: readers of the message skip it. The number of no field that
# they know differs from it by one bit alone.
_TAG = b"\x7a\x20"
_SEAL = len(_TAG) + hashlib.sha256().digest_size


def sealed(content: bytes) -> bytes:
    """A graph message that has no checksum, followed by one."""
    return content + _TAG + hashlib.sha256(content).digest()


def is_sealed(content: bytes) -> bool:
    """Whether the content ends with the checksum of all bytes before it."""
    return content[-_SEAL:] == sealed(content[:-_SEAL])[-_SEAL:]


class GraphFiles:
    """The graphs that a publisher puts into its store. One thread owns it."""

    def __init__(self, *, durable: bool) -> None:
        self._durable = durable
        self._sound: dict[Path, FileStamp] = {}  # files with the right content, as long as nobody writes to them

    def put(self, path: Path, content: bytes) -> None:
        """Make sure that the file has this content, whole at any moment. Raises OSError.

        The next call costs a look at the file's size and time. A folder in its place is set aside, as no file can be
        renamed over it.
        """
        found = _trace(path)
        if found is not None and found == self._sound.get(path):
            return
        if found is not None and files.has(path, content):
            self._sound[path] = found
            return
        if found is not None and path.is_dir() and not path.is_symlink():
            files.keep_aside(path, path.with_name(f"{path.name}.damaged"))
        with files.aside(path, durable=self._durable) as file:
            file.write(content)
        if path in self._sound:
            _log.warning("%s: was damaged or removed, and is written again", path)


def _trace(path: Path) -> FileStamp | None:
    """None where there is no such file."""
    try:
        return FileStamp.of(path.lstat())
    except FileNotFoundError:
        return None
