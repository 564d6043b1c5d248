"""What headers of a call say, its messages however they are cut and compressed, and how statuses are sent."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from urllib.parse import unquote

import grpc
import pytest

from inferencer.transport.grpc_wire import (
    BEGINNING,
    MOST_HEADERS,
    PREFIX,
    Asked,
    Message,
    Messages,
    Refusal,
    asked,
    ending,
)
from paramsync.errors import RequestError, TooLargeError
from paramsync.http2.headers import HeaderReader
from paramsync.http2.hpack import Decoder, encoded

Code = grpc.StatusCode
CONTENT = bytes(range(256)) * 100
WHOLE = PREFIX.pack(False, len(CONTENT)) + CONTENT
GZIP, DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS
Fields = list[tuple[str, str]]


def said(*more: tuple[str, str], method: str = "POST", kind: str = "application/grpc") -> Asked | Refusal:
    """What a call with these headers beside the usual ones says."""
    usual = [(":method", method), (":scheme", "http"), (":path", "/s/M"), ("content-type", kind)]
    block = b"".join([encoded(name.encode(), value.encode("latin-1")) for name, value in [*usual, *more]])
    return asked(HeaderReader(MOST_HEADERS, 1 << 20).read(block))


def call(*more: tuple[str, str], **usual: str) -> Asked:
    found = said(*more, **usual)
    assert isinstance(found, Asked)
    return found


def refusal(*more: tuple[str, str], **usual: str) -> dict[str, str]:
    found = said(*more, **usual)
    assert isinstance(found, Refusal)
    return sent(found.block)


def sent(block: bytes) -> dict[str, str]:
    return {name: value for name, value, *_ in Decoder(1 << 20).decode(block)}


# Headers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2H", 7200), ("3M", 180), ("10S", 10), ("250m", 0.25), ("1500u", 0.0015), ("20n", 2e-8), ("0S", 0),
        ("99999999H", 359999996400),
    ],
)  # fmt: skip
def test_a_timeout_is_in_the_unit_that_it_names(text: str, seconds: float) -> None:
    assert call(("grpc-timeout", text)).timeout == pytest.approx(seconds)
    assert call().timeout is None


@pytest.mark.parametrize(
    ("text", "content"),
    [("YWI=", b"ab"), ("YWI", b"ab"), ("AAEC", b"\x00\x01\x02"), ("", b""), ("/+8=", b"\xff\xef"), ("YQ==,Yg", b"ab")],
    ids=["padded", "not padded", "bytes", "empty", "both signs", "two joined"],
)
def test_binary_metadata_is_bytes(text: str, content: bytes) -> None:
    assert call(("trace-bin", text), ("plain", "YWI=")).metadata == (("trace-bin", content), ("plain", "YWI="))


def test_headers_of_grpc_itself_are_no_metadata_and_metadata_may_come_twice() -> None:
    ours = [("te", "trailers"), ("grpc-encoding", "gzip"), ("grpc-accept-encoding", "gzip"), ("grpc-timeout", "1S")]
    assert call(*ours, ("mine", "1"), ("mine", "2")).metadata == (("mine", "1"), ("mine", "2"))


TIMEOUTS: Fields = [
    ("grpc-timeout", text) for text in ("", "1", "S", "100000000S", "1s", "-1S", "1.5S", "+1S", "1_0S", "²S")
]
BINARY: Fields = [("trace-bin", text) for text in ("Y", "YW*I", "é")]


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        *(
            ([field], Code.INVALID_ARGUMENT, "grpc-timeout: expected up to 8 digits and one of HMS")
            for field in TIMEOUTS
        ),
        *(([field], Code.INVALID_ARGUMENT, "trace-bin: expected base64") for field in BINARY),
        ([("content-type", "application/grpc")], Code.INVALID_ARGUMENT, "content-type: expected it once, found it 2"),
        ([("grpc-timeout", "1S"), ("grpc-timeout", "2S")], Code.INVALID_ARGUMENT, "grpc-timeout: expected it once"),
        ([("grpc-encoding", "br")], Code.UNIMPLEMENTED, "grpc-encoding: expected one of identity, gzip, deflate"),
        ([("large", "x" * MOST_HEADERS)], Code.RESOURCE_EXHAUSTED, f"headers: expected at most {MOST_HEADERS} bytes"),
    ],
)
def test_wrong_headers_are_refused_with_what_was_expected(fields: Fields, code: grpc.StatusCode, text: str) -> None:
    found = refusal(*fields)
    assert (found[":status"], found["grpc-status"]) == ("200", str(code.value[0]))
    assert text in unquote(found["grpc-message"])
    assert found["grpc-accept-encoding"] == "identity,gzip,deflate"


def test_content_types_of_grpc_are_taken_and_all_else_gets_a_status_of_http() -> None:
    for kind in ("application/grpc", "application/grpc+proto", "Application/gRPC;charset=utf-8"):
        assert call(kind=kind).path == "/s/M"
    for kind in ("", "application/json", "application/grpc-web", "application/grpcs"):
        assert refusal(kind=kind) == {":status": "415"}
    assert refusal(method="GET") == {":status": "405", "allow": "POST"}


# Statuses -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no model named 'm'", "no model named 'm'"), ("100 %", "100 %25"), ("a\nb", "a%0Ab"), ("ä", "%C3%A4"),
        ("~ /?#&=+;,", "~ /?#&=+;,"), ("\x7f", "%7F"),
    ],
    ids=["plain", "percent", "line", "not ASCII", "signs", "delete"],
)  # fmt: skip
def test_a_status_text_is_percent_encoded(text: str, message: str) -> None:
    assert sent(ending(Code.NOT_FOUND, text)) == {"grpc-status": "5", "grpc-message": message}


def test_a_call_that_is_answered_ends_with_its_trailing_metadata() -> None:
    assert sent(BEGINNING) == {":status": "200", "content-type": "application/grpc"}
    last = ending(Code.OK, "", (("paramsync-version", "7"),))
    assert sent(last) == {"grpc-status": "0", "paramsync-version": "7"}


# Messages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 7, 4096, 5000, len(WHOLE)])
def test_messages_are_the_same_however_they_are_cut(size: int) -> None:
    messages, stream = Messages(len(CONTENT)), WHOLE * 3
    found = []
    for at in range(0, len(stream), size):
        found += messages.came(stream[at : at + size], ended=at + size >= len(stream))
    assert found == [Message(CONTENT, compressed=False)] * 3
    assert messages.held == 0


def test_a_message_in_tiny_parts_takes_no_more_than_twice_its_size() -> None:
    messages = Messages(1 << 20)
    messages.came(PREFIX.pack(False, 1 << 20), ended=False)
    tracemalloc.start()
    for at in range(1 << 18):
        messages.came(at.to_bytes(3, "big"), ended=False)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert messages.held == 3 << 18
    assert taken < 2 * messages.held


def test_of_many_tiny_messages_no_more_are_cut_than_are_asked_for() -> None:
    assert Messages(10).came(PREFIX.pack(False, 0) * 3000, ended=True, most=2) == [Message(b"", compressed=False)] * 2


@pytest.mark.parametrize(
    ("content", "error"),
    [
        *((WHOLE[:size], "expected as many bytes as its length says") for size in range(1, len(WHOLE), 5000)),
        (PREFIX.pack(False, len(CONTENT) + 1), "at most"),
        (b"\x02\x00\x00\x00\x01x", "expected 0 or 1 before its length, found 2"),
    ],
    ids=str,
)
def test_a_message_that_is_too_short_too_long_or_none_is_refused(content: bytes, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        Messages(len(CONTENT)).came(content, ended=True)


@pytest.mark.parametrize(("window", "packed"), [(GZIP, gzip.compress(CONTENT)), (DEFLATE, zlib.compress(CONTENT))])
def test_a_compressed_message_is_unpacked_up_to_the_limit(window: int, packed: bytes) -> None:
    [message] = Messages(len(packed)).came(PREFIX.pack(True, len(packed)) + packed, ended=True)
    assert message == Message(packed, compressed=True)
    assert message.unpacked(window, most=len(CONTENT)) == CONTENT
    with pytest.raises(TooLargeError):
        message.unpacked(window, most=len(CONTENT) - 1)


@pytest.mark.parametrize(
    "packed",
    [b"", b"abc", gzip.compress(CONTENT)[:-1], gzip.compress(CONTENT) + b"x", zlib.compress(CONTENT)],
    ids=["empty", "something else", "a part", "more", "the other one"],
)
def test_a_message_that_is_not_compressed_as_it_says_is_refused(packed: bytes) -> None:
    with pytest.raises(RequestError, match="expected it compressed as grpc-encoding says"):
        Message(packed, compressed=True).unpacked(GZIP, most=len(CONTENT))
