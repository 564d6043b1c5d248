"""What may be computed on the event loop, from what was seen lately."""

from __future__ import annotations

from inferencer.batching.latency import PROMPT_SECONDS, Latency

FAST, BRISK, SLOW = PROMPT_SECONDS / 10, PROMPT_SECONDS * 0.9, 1.0


def seen(*calls: tuple[int, float], prompt: bool = True) -> Latency:
    pace = Latency(together=True, prompt=prompt)
    for size, seconds in calls:
        pace.took(size, seconds)
    return pace


def test_nothing_is_prompt_before_it_was_so_for_some_calls() -> None:
    assert not seen(*[(100, FAST)] * 7).is_prompt(100)
    assert seen(*[(100, FAST)] * 8).is_prompt(100)
    assert not seen(*[(100, FAST)] * 8, prompt=False).is_prompt(100)


def test_what_was_fast_may_be_twice_as_large_and_what_was_not_quite_as_large_as_it_was() -> None:
    pace = seen(*[(100, FAST)] * 8)
    assert (pace.is_prompt(200), pace.is_prompt(201)) == (True, False)
    pace.took(200, BRISK)
    assert (pace.is_prompt(200), pace.is_prompt(201)) == (True, False)


def test_a_call_that_was_too_large_is_not_made_again_but_smaller_ones_are() -> None:
    pace = seen(*[(100, FAST)] * 8, *[(200, PROMPT_SECONDS * 2)] * 3)
    assert (pace.is_prompt(100), pace.is_prompt(101)) == (True, False)


def test_one_call_that_took_longer_is_put_down_to_the_machine() -> None:
    pace = seen(*[(100, FAST)] * 8, (200, PROMPT_SECONDS * 20), (200, FAST), (200, PROMPT_SECONDS * 20))
    assert pace.is_prompt(200)


def test_after_a_slow_call_all_begins_anew() -> None:
    pace = seen(*[(100, FAST)] * 8, (100, SLOW))
    assert not pace.is_prompt(10)
    for _ in range(8):
        pace.took(100, FAST)
    assert pace.is_prompt(100)
