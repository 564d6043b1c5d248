"""Bytes of strangers: nothing raises, how they are cut makes no difference, and the package h2 refuses the same."""

from __future__ import annotations

import random
import re
from pathlib import Path

import h2.config
import h2.connection
import h2.exceptions
import pytest
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as some

from paramsync.http2 import frames
from paramsync.http2.connection import ServerConnection
from paramsync.http2.events import Limits, Lost
from tests.hostile.fuzz import http2
from tests.http2 import wire

CORPUS = sorted((Path(http2.__file__).parent / "corpus").iterdir())
LIMITS = Limits(streams=100, frame=1 << 14, stream_window=65_535, connection_window=65_535, control=1 << 30)
DIFFERENCES = {
    "RFC 9113, 3.4: the first frame is SETTINGS, which h2 does not ask for": "in place of type 4",
    "RFC 9113, 6.4: RST_STREAM of an idle stream is an error, which h2 ignores once another began": "did not begin",
    "RFC 9113, 6.9: the reserved bit of WINDOW_UPDATE is ignored, h2 refuses it": "non-compliant data",
    "RFC 8441: ENABLE_CONNECT_PROTOCOL is unknown to us, h2 checks its value": "Setting 8 has invalid value",
    "RFC 9113, 8.3.1: :authority may be left out, h2 wants it or host": "does not have an :authority",
    "ENHANCE_YOUR_CALM: limits of ours that h2 has not": "ENHANCE_YOUR_CALM",
}
"""Where one of both refuses alone: the reason, and the text that it gives."""

CUTS = some.sampled_from([1, 5, 9, 100])
WHOLE = 1 << 20


@settings(max_examples=150)
@given(
    content=some.binary(max_size=300), cut=CUTS, first=some.sampled_from([b"", frames.PREFACE, http2.beginnings()[-1]])
)
def test_any_bytes_mean_the_same_however_they_are_cut(content: bytes, cut: int, first: bytes) -> None:
    _means_the_same(first + content, cut)


@settings(max_examples=150)
@given(beginning=some.sampled_from(http2.beginnings()), seed=some.integers(0, 1 << 32), cut=CUTS)
def test_faulty_conversations_mean_the_same_however_they_are_cut(beginning: bytes, seed: int, cut: int) -> None:
    _means_the_same(http2.mutated(beginning, random.Random(seed)), cut)


@pytest.mark.parametrize("beginning", http2.beginnings())
def test_what_is_mutated_is_right_before(beginning: bytes) -> None:
    events = http2.connect(beginning, WHOLE, answered=False)
    assert "Lost" not in {type(event).__name__ for event in events}


def _means_the_same(content: bytes, cut: int) -> None:
    whole = http2.described(http2.connect(content, WHOLE, answered=False))
    assert http2.described(http2.connect(content, cut, answered=False)) == whole
    http2.connect(content, cut, answered=True)


def ours(content: bytes) -> str:
    """Why we refuse a conversation, or one of its streams; empty if all of it is accepted."""
    server = ServerConnection(LIMITS)
    events = server.receive(content, 0.0)
    while server.has_more:
        events += server.receive(b"", 0.0)
    lost = [str(event.error) for event in events if isinstance(event, Lost)]
    resets = [f"reset {frame.stream}" for frame in wire.written(server) if frame.kind == frames.RST_STREAM]
    return " ".join(lost + resets)


def theirs(content: bytes) -> str:
    """The same by the package h2."""
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
    server.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: LIMITS.streams})
    server.initiate_connection()
    server.data_to_send()
    try:
        server.receive_data(content)
    except h2.exceptions.ProtocolError as error:
        return str(error) or type(error).__name__
    resets = [frame for frame in wire.split(server.data_to_send()) if frame.kind == frames.RST_STREAM]
    return " ".join(f"reset {frame.stream}" for frame in resets)


def agree(content: bytes) -> None:
    we, they = ours(content), theirs(content)
    assert bool(we) == bool(they) or re.search("|".join(DIFFERENCES.values()), we or they), (we, they, content)


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.name)
def test_the_corpus_of_the_fuzzer_means_the_same_however_it_is_cut_and_is_refused_as_by_h2(file: Path) -> None:
    content = file.read_bytes()
    _means_the_same(content, 7)
    if http2.is_whole(content):
        agree(content)


def test_faulty_conversations_are_refused_where_the_package_h2_refuses_them(whole: bool) -> None:
    for seed in range(100_000 if whole else 2_000):
        chance = random.Random(seed)
        content = http2.mutated(chance.choice(http2.beginnings()), chance)
        if http2.is_whole(content):
            agree(content)
