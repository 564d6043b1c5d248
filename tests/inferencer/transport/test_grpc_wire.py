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
from paramsync.http2.headers import HeaderReader, encoded
from paramsync.http2.hpack import Decoder

CONTENT = bytes(range(256)) * 100
WHOLE = PREFIX.pack(False, len(CONTENT)) + CONTENT
GZIP, DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS


def said(**fields: str) -> Asked | Refusal:
    """By a call with these headers; underscores are hyphens."""
    pseudo = {":method": fields.pop("method", "POST"), ":scheme": "http", ":path": "/s/M", ":authority": "here"}
    given = {**pseudo, "content-type": "application/grpc", **{name.replace("_", "-"): fields[name] for name in fields}}
    block = b"".join([encoded(name.encode(), value.encode("latin-1")) for name, value in given.items()])
    return asked(HeaderReader(MOST_HEADERS, 1 << 20).read(block))


def call(**fields: str) -> Asked:
    found = said(**fields)
    assert isinstance(found, Asked)
    return found


def refusal(**fields: str) -> dict[str, str]:
    found = said(**fields)
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
    assert call(grpc_timeout=text).timeout == pytest.approx(seconds)


def test_a_call_without_a_timeout_has_none() -> None:
    assert call().timeout is None


@pytest.mark.parametrize("text", ["", "1", "S", "100000000S", "1s", "-1S", "1.5S", "+1S", "1_0S", "²S"])
def test_a_timeout_that_is_none_is_refused_with_what_was_expected(text: str) -> None:
    found = refusal(grpc_timeout=text)
    assert found[":status"] == "200"
    assert found["grpc-status"] == str(grpc.StatusCode.INVALID_ARGUMENT.value[0])
    assert found["grpc-message"].startswith("grpc-timeout: expected up to 8 digits and one of HMSmun")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("YWI=", b"ab"), ("YWI", b"ab"), ("AAEC", b"\x00\x01\x02"), ("", b""), ("/+8=", b"\xff\xef"),
        ("YQ==,Yg", b"ab"),
    ],
    ids=["padded", "not padded", "bytes", "empty", "both signs", "two joined"],
)  # fmt: skip
def test_binary_metadata_is_bytes(text: str, content: bytes) -> None:
    assert dict(call(trace_bin=text, plain="YWI=").metadata) == {"trace-bin": content, "plain": "YWI="}


@pytest.mark.parametrize("text", ["Y", "YW*I", "é"])
def test_binary_metadata_that_is_none_is_refused(text: str) -> None:
    found = refusal(trace_bin=text)
    assert found["grpc-status"] == str(grpc.StatusCode.INVALID_ARGUMENT.value[0])
    assert found["grpc-message"].startswith("trace-bin: expected base64")


def test_headers_of_grpc_itself_are_no_metadata() -> None:
    found = call(te="trailers", grpc_encoding="gzip", grpc_accept_encoding="gzip", grpc_timeout="1S", mine="1")
    assert found.metadata == (("mine", "1"),)


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "Application/gRPC;charset=utf-8"])
def test_content_types_of_grpc_are_taken(kind: str) -> None:
    assert call(content_type=kind).path == "/s/M"


@pytest.mark.parametrize("kind", ["", "application/json", "application/grpc-web", "application/grpcs"])
def test_other_content_types_are_answered_415(kind: str) -> None:
    assert refusal(content_type=kind) == {":status": "415"}


def test_other_methods_than_post_are_answered_405() -> None:
    assert refusal(method="GET") == {":status": "405", "allow": "POST"}


def test_an_encoding_that_is_not_known_is_refused_with_those_that_are() -> None:
    found = refusal(grpc_encoding="br")
    assert found["grpc-status"] == str(grpc.StatusCode.UNIMPLEMENTED.value[0])
    assert found["grpc-accept-encoding"] == "identity,gzip,deflate"


def said_with(*more: tuple[str, str]) -> Asked | Refusal:
    """By a call with these headers beside the usual ones."""
    usual = [(":method", "POST"), (":scheme", "http"), (":path", "/s/M"), ("content-type", "application/grpc")]
    block = b"".join([encoded(name.encode(), value.encode()) for name, value in [*usual, *more]])
    return asked(HeaderReader(MOST_HEADERS, 1 << 20).read(block))


@pytest.mark.parametrize(
    "fields",
    [
        [("content-type", "application/grpc")],
        [("grpc-timeout", "1S"), ("grpc-timeout", "2S")],
        [("grpc-encoding", "gzip"), ("mine", "1"), ("grpc-encoding", "identity")],
    ],
)
def test_a_header_of_which_one_counts_is_refused_twice(fields: list[tuple[str, str]]) -> None:
    found = said_with(*fields)
    assert isinstance(found, Refusal)
    status = sent(found.block)
    text = f"{fields[0][0]}: expected it once, found it 2 times"
    assert (status["grpc-status"], unquote(status["grpc-message"])) == ("3", text)


def test_metadata_may_come_twice() -> None:
    found = said_with(("mine", "1"), ("mine", "2"))
    assert isinstance(found, Asked)
    assert found.metadata == (("mine", "1"), ("mine", "2"))


def test_headers_beyond_their_limit_are_refused_with_it() -> None:
    found = refusal(large="x" * MOST_HEADERS)
    assert found["grpc-status"] == str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    assert str(MOST_HEADERS) in found["grpc-message"]


# Statuses -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no model named 'm'", "no model named 'm'"),
        ("100 %", "100 %25"),
        ("a\nb", "a%0Ab"),
        ("ä", "%C3%A4"),
        ("~ /?#&=+;,", "~ /?#&=+;,"),
        ("\x7f", "%7F"),
    ],
    ids=["plain", "percent", "line", "not ASCII", "signs", "delete"],
)
def test_a_status_text_is_percent_encoded(text: str, message: str) -> None:
    found = sent(ending(grpc.StatusCode.NOT_FOUND, text))
    assert found == {"grpc-status": "5", "grpc-message": message}


def test_a_call_that_is_answered_ends_with_its_trailing_metadata() -> None:
    assert sent(BEGINNING) == {":status": "200", "content-type": "application/grpc"}
    assert sent(ending(grpc.StatusCode.OK, "", (("paramsync-version", "7"),))) == {
        "grpc-status": "0",
        "paramsync-version": "7",
    }


# Messages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 4096, 5000, len(WHOLE)])
def test_messages_are_the_same_however_they_are_cut(size: int) -> None:
    messages, stream = Messages(len(CONTENT)), WHOLE * 3
    found = []
    for at in range(0, len(stream), size):
        found += messages.came(stream[at : at + size], ended=at + size >= len(stream))
    assert [message.content for message in found] == [CONTENT] * 3
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


def test_a_message_that_ends_too_soon_is_refused() -> None:
    for size in range(1, len(WHOLE), 5000):
        with pytest.raises(RequestError):
            Messages(len(CONTENT)).came(WHOLE[:size], ended=True)


def test_a_message_beyond_the_limit_is_refused_before_any_of_it_comes() -> None:
    with pytest.raises(TooLargeError):
        Messages(len(CONTENT) - 1).came(WHOLE[: PREFIX.size], ended=False)


def test_what_is_neither_compressed_nor_not_is_refused() -> None:
    with pytest.raises(RequestError, match="expected 0 or 1 before its length, found 2"):
        Messages(10).came(b"\x02\x00\x00\x00\x01x", ended=True)


def test_a_message_says_whether_it_is_compressed() -> None:
    [found] = Messages(10).came(PREFIX.pack(True, 3) + b"abc", ended=True)
    assert found == Message(b"abc", compressed=True)


@pytest.mark.parametrize(("window", "packed"), [(GZIP, gzip.compress(CONTENT)), (DEFLATE, zlib.compress(CONTENT))])
def test_a_compressed_message_is_unpacked_up_to_the_limit(window: int, packed: bytes) -> None:
    message = Message(packed, compressed=True)
    assert message.unpacked(window, most=len(CONTENT)) == CONTENT
    with pytest.raises(TooLargeError):
        message.unpacked(window, most=len(CONTENT) - 1)


def test_a_small_message_that_unpacks_to_very_much_takes_no_more_than_the_limit() -> None:
    message, most = Message(gzip.compress(bytes(64 << 20)), compressed=True), 1 << 20
    tracemalloc.start()
    with pytest.raises(TooLargeError):
        message.unpacked(GZIP, most=most)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * most


@pytest.mark.parametrize(
    "packed",
    [b"", b"abc", gzip.compress(CONTENT)[:-1], gzip.compress(CONTENT) + b"x", zlib.compress(CONTENT)],
    ids=["empty", "something else", "a part", "more", "the other one"],
)
def test_a_message_that_is_not_compressed_as_it_says_is_refused(packed: bytes) -> None:
    with pytest.raises(RequestError, match="expected it compressed as grpc-encoding says"):
        Message(packed, compressed=True).unpacked(GZIP, most=len(CONTENT))
