"""Index files as older releases of TensorFlow wrote them: with blocks compressed by snappy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cramjam import snappy

from paramsync.tensorbundle import sstable
from tests.hostile.fuzz.mutate import trailed

_END = sstable.write([])[-8:]


def of_snappy(block: bytes) -> bytes:
    return bytes(snappy.compress_raw(block))


def compressed(content: bytes, compress: Callable[[bytes], bytes] = of_snappy) -> bytes:
    """Return the same table with every block compressed, including the list of blocks."""
    reader = sstable._Reader(content, Path("a.index"))
    return assembled([compress(reader.block(offset, size)) for offset, size in reader.handles()])


def compress(index: Path) -> None:
    """Replace an index file by a new file with the same table, compressed."""
    aside = index.with_name(f"{index.name}.compressed")
    aside.write_bytes(compressed(index.read_bytes()))
    aside.replace(index)


def assembled(blocks: Sequence[bytes]) -> bytes:
    """Make a table of blocks that are already compressed, or are only marked as compressed."""
    content = bytearray()
    listing = sstable._BlockWriter(1)
    for number, block in enumerate(blocks):
        # the separator: any key from the block's last key up to the next block's first key
        listing.add(b"\xff%09d" % number, sstable.varint(len(content)) + sstable.varint(len(block)))
        content += trailed(block, kind=1)
    at = len(content)
    last = of_snappy(listing.finish())
    content += trailed(last, kind=1)
    footer = b"\0\0" + sstable.varint(at) + sstable.varint(len(last))
    return bytes(content) + footer.ljust(40, b"\0") + _END
