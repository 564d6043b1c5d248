"""HPACK (RFC 7541): decodes the blocks of one peer, and encodes fields without a dynamic table."""

from __future__ import annotations

import functools

from paramsync.http2.errors import ErrorCode, Http2Error
from paramsync.http2.fields import OVERHEAD, Field, field

_TABLE_SIZE = 4096  # bytes of the dynamic table, the default
_LONGEST_INTEGER = 5  # the most octets of an integer after its first octet
_STATIC_NAMES_AND_VALUES = (
    ":authority;:method=GET;:method=POST;:path=/;:path=/index.html;:scheme=http;:scheme=https;:status=200;"
    ":status=204;:status=206;:status=304;:status=400;:status=404;:status=500;accept-charset;"
    "accept-encoding=gzip, deflate;accept-language;accept-ranges;accept;access-control-allow-origin;age;allow;"
    "authorization;cache-control;content-disposition;content-encoding;content-language;content-length;"
    "content-location;content-range;content-type;cookie;date;etag;expect;expires;from;host;if-match;"
    "if-modified-since;if-none-match;if-range;if-unmodified-since;last-modified;link;location;max-forwards;"
    "proxy-authenticate;proxy-authorization;range;referer;refresh;retry-after;server;set-cookie;"
    "strict-transport-security;transfer-encoding;user-agent;vary;via;www-authenticate"
)
_STATIC_PAIRS = [tuple(entry.encode().partition(b"=")[::2]) for entry in _STATIC_NAMES_AND_VALUES.split(";")]
_STATIC = [field(name, value) for name, value in _STATIC_PAIRS]
_STATIC_INDICES = {name: index for index, (name, _) in reversed([*enumerate(_STATIC_PAIRS, 1)])}
_HUFFMAN_LENGTHS = {  # symbols by the length of their codes in bits; the code is canonical, so the lengths determine it
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: bytes.fromhex("5cc3d0"),
    20: bytes.fromhex("808283a2b8c2e0e2"),
    21: bytes.fromhex("99a1a7acb0b1b3d1d8d9e3e5e6"),
    22: bytes.fromhex("8184858688929a9ca0a3a4a9aaadb2b5b9babbbdbec4c6e4e8e9"),
    23: bytes.fromhex("0187898a8b8c8d8f93959697989b9d9ea5a6a8aeafb4b6b7bcbfc5e7ef"),
    24: bytes.fromhex("098e9091949fabced7e1eced"),
    25: bytes.fromhex("c7cfeaeb"),
    26: bytes.fromhex("c0c1c8c9cacdd2d5dadbeef0f2f3ff"),
    27: bytes.fromhex("cbccd3d4d6dddedff1f4f5f6f7f8fafbfcfdfe"),
    28: bytes.fromhex("020304050607080b0c0e0f1011121314151718191a1b1c1d1e1f7fdcf9"),
    30: bytes.fromhex("0a0d16"),
}
_SINK = 1 << 20  # the state after an invalid code: an index beyond the table, so that the next look-up fails
_LONGEST_PADDING = 7  # padding has at most this many bits, and all are 1


class Decoder:
    """Decodes the blocks of one peer in their order."""

    def __init__(self, most: int) -> None:
        """A block with more than `most` bytes of fields ends the connection."""
        self.changes = 0  # how often the table changed: between two changes, equal blocks mean equal fields
        self._most = most
        self._table: list[Field] = []  # the newest entry is the last
        self._size = 0
        self._limit = _TABLE_SIZE

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block. Raises Http2Error; after it, no further block can be decoded."""
        try:
            return self._decode(block)
        except IndexError:
            raise _wrong("a block that ends too soon") from None

    def _decode(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        at, end, left = 0, len(block), self._most
        while at < end and left >= 0:
            first = block[at]
            if first > 0x7F:
                index, at = (first & 0x7F, at + 1) if first != 0xFF else _integer(block, at, 7)
                decoded = self._entry(index)
            elif first & 0xE0 == 0x20:
                size, at = _integer(block, at, 5)
                self._resize(size, late=bool(fields))
                left -= OVERHEAD  # a new table size costs as much work as a field
                continue
            else:
                decoded, at = self._literal(block, at, 6 if first & 0x40 else 4)
                if first & 0x40:
                    self._add(decoded)
            fields.append(decoded)
            left -= decoded.size
        if left < 0:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"fields of more than {self._most} bytes")
        return fields

    def _entry(self, index: int) -> Field:
        if index > len(_STATIC):
            return self._table[len(_STATIC) - index]
        if not index:
            raise _wrong("index 0")
        return _STATIC[index - 1]

    def _literal(self, block: bytes, at: int, bits: int) -> tuple[Field, int]:
        index, at = _integer(block, at, bits)
        if index:
            name = self._entry(index).name.encode("latin-1")
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return field(name, value), at

    def _resize(self, size: int, *, late: bool) -> None:
        if size > _TABLE_SIZE or late:
            raise _wrong(f"a table of {size} bytes, or told too late")
        self._limit = size
        self._evict()

    def _add(self, added: Field) -> None:
        self._table.append(added)
        self._size += added.size
        self._evict()

    def _evict(self) -> None:
        self.changes += 1
        evicted = 0
        while self._size > self._limit:
            self._size -= self._table[evicted].size
            evicted += 1
        del self._table[:evicted]


def encoded(name: bytes, value: bytes) -> bytes:
    """Encode a field as a literal, whose bytes mean the same on all connections."""
    return _encoded_name(name) + _encoded_string(value)


@functools.cache  # without a limit, because a server sends few names
def _encoded_name(name: bytes) -> bytes:
    index = _STATIC_INDICES.get(name, 0)
    return _encoded_integer(index, 4) + (b"" if index else _encoded_string(name))


def _encoded_string(content: bytes) -> bytes:
    return _encoded_integer(len(content), 7) + content


def _encoded_integer(number: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if number < most:
        return bytes((number,))
    octets = [most]
    number -= most
    while number > 0x7F:
        octets.append((number & 0x7F) | 0x80)
        number >>= 7
    return bytes((*octets, number))


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Read an integer that begins in the lower bits of an octet. Returns the integer, and the position after it."""
    most = (1 << bits) - 1
    number = block[at] & most
    at += 1
    if number < most:
        return number, at
    for shift in range(0, 7 * _LONGEST_INTEGER, 7):
        octet = block[at]
        at += 1
        number += (octet & 0x7F) << shift
        if octet < 0x80:
            return number, at
    raise _wrong("an integer of too many octets")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    huffman = block[at] > 0x7F
    size, at = _integer(block, at, 7)
    end = at + size
    if end > len(block):
        raise _wrong("a string that ends too soon")
    content = block[at:end]
    return (_without_huffman(content) if huffman else content), end


def _without_huffman(content: bytes) -> bytes:
    table, last = _huffman_table()
    state = 0
    decoded = bytearray()
    try:
        for octet in content:
            state, symbol = table[state + (octet >> 4)]
            decoded += symbol
            state, symbol = table[state + (octet & 15)]
            decoded += symbol
    except IndexError:
        state = _SINK
    if state not in last:
        raise _wrong("a string with a code that there is not, or wrong padding")
    return bytes(decoded)


@functools.cache
def _huffman_table() -> tuple[list[tuple[int, bytes]], frozenset[int]]:
    """Return a state machine, and the states in which a string may end.

    The machine has the next state and the decoded symbol, if any, at index `state + four bits`.
    """
    codes = _huffman_codes()
    prefixes = sorted({(size, code >> length - size) for length, code in codes for size in range(length)})
    states = {prefix: 16 * number for number, prefix in enumerate(prefixes)}
    table: list[tuple[int, bytes]] = []
    for prefix in prefixes:
        for bits in range(16):
            (size, code), symbol = prefix, b""
            for shift in (3, 2, 1, 0):
                size, code = size + 1, code << 1 | bits >> shift & 1
                if (size, code) in codes:
                    symbol, size, code = codes[size, code], 0, 0
            table.append((states.get((size, code), _SINK), symbol))
    last = frozenset(states[size, (1 << size) - 1] for size in range(_LONGEST_PADDING + 1))
    return table, last


def _huffman_codes() -> dict[tuple[int, int], bytes]:
    """Return the symbols by length and code."""
    codes: dict[tuple[int, int], bytes] = {}
    code = before = 0
    for length, symbols in _HUFFMAN_LENGTHS.items():
        code <<= length - before
        before = length
        for symbol in symbols:
            codes[length, code] = bytes((symbol,))
            code += 1
    return codes


def _wrong(text: str) -> Http2Error:
    return Http2Error(ErrorCode.COMPRESSION_ERROR, text)
