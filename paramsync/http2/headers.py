"""HPACK: reads the field sections of requests, checked and cached; encodes those of responses without any state."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from paramsync.http2.errors import ErrorCode, Http2Error, MalformedHeadError

FIELD_OVERHEAD = 32  # bytes that RFC 9113 counts for each field beside its name and value
STATUS_200 = b"\x88"

_CACHED_HEADS = 64
_CACHED_BYTES = 64 << 10
_PSEUDO = {b":method": "method", b":scheme": "scheme", b":path": "path", b":authority": "authority"}
_OF_CONNECTIONS = {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z")
_STATIC_NAMES = {name: index for index, (name, _) in reversed([*enumerate(HeaderTable.STATIC_TABLE, 1)])}


class Head:
    """The field section that begins a request. Requests with the same block share it."""

    __slots__ = ("authority", "fields", "length", "method", "parsed", "path", "scheme", "size", "too_large")

    def __init__(self, pseudo: dict[str, str], fields: tuple[tuple[str, str], ...], length: int, size: int) -> None:
        self.method = pseudo["method"]
        self.path = pseudo.get("path", "")
        self.scheme = pseudo.get("scheme", "")
        self.authority = pseudo.get("authority", "")
        self.fields = fields
        self.length = length  # of the content, as promised by content-length; -1 where it was not
        self.size = size
        self.too_large = False
        self.parsed: Any = None  # whoever uses the head keeps here what it made of it


class HeaderReader:
    """The field sections that one peer sends, in order, as each can change what the next ones mean."""

    def __init__(self, largest: int, decoded: int) -> None:
        """Heads of more than `largest` bytes are marked; a section that decodes to more than `decoded` is an error."""
        self._largest = largest
        self._decoder = Decoder(decoded)
        self._table = self._decoder.header_table = _CountingTable()
        self._cache: dict[bytes, Head] = {}
        self._cached_bytes = 0

    def read(self, block: bytes) -> Head:
        """The head of a request. Raises MalformedHeadError and Http2Error."""
        head = self._cache.get(block)
        if head is None:
            head, changed = self._decoded_head(block)
            self._remember(block, head, changed)
        return head

    def read_trailers(self, block: bytes) -> None:
        """Take the section that ends a request, checked. Raises MalformedHeadError and Http2Error."""
        fields, _ = self._decoded(block)
        for name, value in fields:
            _check_field(name, value)

    def skip(self, block: bytes) -> None:
        """Take a section that nobody wants. Raises Http2Error."""
        if block not in self._cache:
            self._decoded(block)

    def _decoded_head(self, block: bytes) -> tuple[Head, bool]:
        fields, changed = self._decoded(block)
        head = _head(fields)
        head.too_large = head.size > self._largest
        return head, changed

    def _decoded(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        before = self._table.changes
        try:
            fields = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        except HPACKError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        changed = self._table.changes != before or (block[:1] > b"\x1f" and block[:1] < b"\x40")
        if changed:
            self._cache.clear()
            self._cached_bytes = 0
        return fields, changed

    def _remember(self, block: bytes, head: Head, changed: bool) -> None:
        if changed or len(block) > _CACHED_BYTES // 4:
            return
        if len(self._cache) >= _CACHED_HEADS or self._cached_bytes + len(block) > _CACHED_BYTES:
            self._cache.clear()
            self._cached_bytes = 0
        self._cache[block] = head
        self._cached_bytes += len(block)


class _CountingTable(HeaderTable):
    """Counts additions: while there are none, the same block means the same fields."""

    changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)


def encoded(name: bytes, value: bytes) -> bytes:
    """One field as a literal that no table remembers, so that it means the same on every connection."""
    index = _STATIC_NAMES.get(name, 0)
    return _integer(index, 4) + (b"" if index else _string(name)) + _string(value)


def encoded_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(encoded(name, value) for name, value in fields)


def _string(content: bytes) -> bytes:
    return _integer(len(content), 7) + content


def _integer(number: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if number < most:
        return bytes((number,))
    number -= most
    octets = [most]
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    return bytes((*octets, number))


def _head(section: list[tuple[bytes, bytes]]) -> Head:
    pseudo: dict[str, str] = {}
    fields: list[tuple[str, str]] = []
    length, size = -1, 0
    for name, value in section:
        size += len(name) + len(value) + FIELD_OVERHEAD
        known = _PSEUDO.get(name)
        if known is None:
            _check_field(name, value)
            if name == b"content-length":
                length = _content_length(value, length)
            fields.append((name.decode("latin-1"), value.decode("latin-1")))
        elif fields or known in pseudo or _BAD_VALUE.search(value):
            raise MalformedHeadError(f"{known}: late, twice, or with a forbidden octet")
        else:
            pseudo[known] = value.decode("latin-1")
    _check_pseudo(pseudo)
    return Head(pseudo, tuple(fields), length, size)


def _check_field(name: bytes, value: bytes) -> None:
    if not _NAME.fullmatch(name) or _BAD_VALUE.search(value):
        raise MalformedHeadError(f"field {name!r}: a forbidden octet or an unknown pseudo-header")
    if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
        raise MalformedHeadError(f"field {name!r} is for one connection")


def _check_pseudo(pseudo: dict[str, str]) -> None:
    absent = [name for name in ("method", "scheme", "path") if not pseudo.get(name)]
    if pseudo.get("method") == "CONNECT":
        absent = [] if pseudo.keys() == {"method", "authority"} else ["authority alone"]
    if absent:
        raise MalformedHeadError(f"a request without {', '.join(absent)}")


def _content_length(value: bytes, before: int) -> int:
    if not (value.isdigit() and len(value) < 20) or before not in (-1, int(value)):
        raise MalformedHeadError(f"content-length {value!r}")
    return int(value)
