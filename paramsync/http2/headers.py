"""Decodes and checks the header sections of requests. Caches them, because most sections repeat an earlier section."""

from __future__ import annotations

from typing import Any

from paramsync.http2.errors import MalformedHeadError
from paramsync.http2.fields import Field
from paramsync.http2.hpack import Decoder

STATUS_200 = b"\x88"

_CACHED_HEADS = 64
_CACHED_BYTES = 64 << 10


class Head:
    """The header section of a request. Requests whose encoded sections are equal may share a Head."""

    __slots__ = ("fields", "length", "method", "parsed", "path", "size", "too_large")

    def __init__(self, pseudo: dict[str, str], fields: tuple[tuple[str, str], ...], size: int, largest: int) -> None:
        self.method = pseudo[":method"]
        self.path = pseudo.get(":path", "")
        self.fields = fields
        self.length = _content_length(fields)  # content-length; -1 if there is none
        self.size = size
        self.too_large = size > largest
        self.parsed: Any = None  # the application's own parse of the head


class HeaderReader:
    """Reads one peer's sections in their order, because each section can change the meaning of later sections."""

    def __init__(self, largest: int, most: int) -> None:
        """A head of more than `largest` bytes is marked `too_large`.

        More than `most` bytes in a head or in trailers end the connection.
        """
        self.decoded = 0
        """Bytes of blocks that were not in the cache."""
        self._largest = largest
        self._decoder = Decoder(most)
        self._heads: dict[bytes, Head] = {}
        self._cached_bytes = 0

    def read(self, block: bytes) -> Head:
        """Read the head of a request. Raises MalformedHeadError and Http2Error."""
        head = self._heads.get(block)
        if head is None:
            before = self._decoder.changes
            head = _head(self._decode(block), self._largest)
            if self._decoder.changes == before:
                self._remember(block, head)
        return head

    def read_trailers(self, block: bytes) -> None:
        """Check the section that ends a request. Raises MalformedHeadError and Http2Error."""
        for name, _, _, fault in self._decode(block):
            if fault or name.startswith(":"):
                raise MalformedHeadError(fault or f"{name} in trailers")

    def skip(self, block: bytes) -> None:
        """Decode a section and ignore its fields: it may change the table of the decoder. Raises Http2Error."""
        if block not in self._heads:
            self._decode(block)

    def _decode(self, block: bytes) -> list[Field]:
        before = self._decoder.changes
        self.decoded += len(block)
        fields = self._decoder.decode(block)
        if self._decoder.changes != before:
            self._forget()
        return fields

    def _remember(self, block: bytes, head: Head) -> None:
        if len(self._heads) == _CACHED_HEADS or self._cached_bytes + len(block) > _CACHED_BYTES:
            self._forget()
        if len(block) <= _CACHED_BYTES:
            self._heads[block] = head
            self._cached_bytes += len(block)

    def _forget(self) -> None:
        self._heads.clear()
        self._cached_bytes = 0


def _head(section: list[Field], largest: int) -> Head:
    pseudo: dict[str, str] = {}
    fields: list[tuple[str, str]] = []
    size = 0
    for name, value, field_size, fault in section:
        size += field_size
        if fault:
            raise MalformedHeadError(fault)
        if name[0] != ":":
            fields.append((name, value))
        elif fields or name in pseudo:
            raise MalformedHeadError(f"{name} twice, or after other fields")
        else:
            pseudo[name] = value
    _check_pseudo(pseudo)
    return Head(pseudo, tuple(fields), size, largest)


def _check_pseudo(pseudo: dict[str, str]) -> None:
    if pseudo.get(":method") == "CONNECT":
        complete = pseudo.keys() == {":method", ":authority"}
    else:
        complete = bool(pseudo.get(":method") and pseudo.get(":scheme") and pseudo.get(":path"))
    if not complete:
        raise MalformedHeadError(f"a request with {', '.join(pseudo) or 'no pseudo-header'} alone, or an empty one")


def _content_length(fields: tuple[tuple[str, str], ...]) -> int:
    said = {value for name, value in fields if name == "content-length"}
    if not said:
        return -1
    value = said.pop()
    if said or not value.isascii() or not value.isdigit() or len(value) > 18:
        raise MalformedHeadError("content-length")
    return int(value)
