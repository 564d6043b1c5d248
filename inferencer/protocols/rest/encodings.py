"""Bodies that came packed: in steps, so that no more is unpacked than may be, and never on the event loop."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from paramsync.errors import RequestError

KNOWN = "gzip, deflate"
MOST_TIMES = 100
"""As large as it came may a body be that is larger than FREE. Numbers are packed to a tenth, zeros to a thousandth."""
FREE = 1 << 20
_STEP = 1 << 18  # bytes that are unpacked in one go
_PART = 1 << 16  # of what is packed: zlib copies what it did not come to
_ZLIB, _RAW, _GZIP = zlib.MAX_WBITS, -zlib.MAX_WBITS, 16 + zlib.MAX_WBITS


class EncodingError(RequestError):
    """A Content-Encoding that is not known here."""

    def __init__(self, found: str) -> None:
        super().__init__(f"Content-Encoding: expected {KNOWN} or none, found {found!r}")


def known(encoding: str) -> str:
    """ "gzip", "deflate", or "" for none. Raises EncodingError."""
    found = encoding.strip().lower()
    if found in ("", "identity"):
        return ""
    if found in ("gzip", "x-gzip"):
        return "gzip"
    if found != "deflate":
        raise EncodingError(encoding[:40])
    return found


def unpacked(content: bytes, encoding: str) -> Iterator[bytes]:
    """What it holds, some at a time. Raises RequestError. zlib lets other threads have their turn meanwhile."""
    zipped = zlib.decompressobj(_GZIP if encoding == "gzip" else _deflated(content))
    try:
        for at in range(0, len(content), _PART):
            part = content[at : at + _PART]
            while part and not zipped.eof:
                if more := zipped.decompress(part, _STEP):
                    yield more
                part = zipped.unconsumed_tail
    except zlib.error as error:
        raise RequestError("body: expected what its headers say, found what cannot be unpacked") from error
    if not zipped.eof or zipped.unused_data:
        found = "more after its end" if zipped.eof else "that it ends too early"
        raise RequestError(f"body: expected what its headers say, found {found}")


def _deflated(content: bytes) -> int:
    """Many a client leaves the header out that it should have."""
    return _ZLIB if content[:1] and content[0] & 0x0F == zlib.DEFLATED else _RAW
