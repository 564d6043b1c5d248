"""Bytes of strangers: nothing raises, what is written is whole frames, and how bytes were cut makes no difference."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from paramsync.http2 import frames
from tests.hostile.fuzz import http2

CUTS = some.sampled_from([1, 5, 9, 100])
WHOLE = 1 << 20


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    content=some.binary(max_size=300), cut=CUTS, first=some.sampled_from([b"", frames.PREFACE, http2.beginnings()[-1]])
)
def test_any_bytes_mean_the_same_however_they_are_cut(content: bytes, cut: int, first: bytes) -> None:
    _means_the_same(first + content, cut)


@settings(max_examples=150, deadline=None, derandomize=True)
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
