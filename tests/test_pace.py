"""What may be computed on the event loop, and how many requests are waited for: from what was seen lately."""

from __future__ import annotations

from inferencer.answering.pace import PROMPT_SECONDS, Pace

FAST, BRISK, SLOW = PROMPT_SECONDS / 10, PROMPT_SECONDS * 0.9, 1.0


def seen(*calls: tuple[int, float], prompt: bool = True) -> Pace:
    pace = Pace(together=True, prompt=prompt)
    for size, seconds in calls:
        pace.took(size, seconds, now=0.0)
    return pace


def test_nothing_is_prompt_before_it_was_so_for_some_calls() -> None:
    assert not seen(*[(100, FAST)] * 7).is_prompt(100)
    assert seen(*[(100, FAST)] * 8).is_prompt(100)
    assert not seen(*[(100, FAST)] * 8, prompt=False).is_prompt(100)


def test_what_was_fast_may_be_twice_as_large_and_what_was_not_quite_as_large_as_it_was() -> None:
    pace = seen(*[(100, FAST)] * 8)
    assert (pace.is_prompt(200), pace.is_prompt(201)) == (True, False)
    pace.took(200, BRISK, now=0.0)
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
        pace.took(100, FAST, now=0.0)
    assert pace.is_prompt(100)


def test_as_many_are_expected_as_came_together() -> None:
    pace = seen()
    assert pace.expected == 1
    pace.met(5)
    assert pace.expected == 5
    pace.missed(3)
    assert pace.expected == 3
    pace.missed(0)
    assert pace.expected == 1


def test_what_came_together_a_while_ago_is_expected_no_more() -> None:
    pace = seen((100, FAST))
    pace.met(5)
    assert (pace.is_alone(0.01), pace.expected) == (False, 5)
    assert (pace.is_alone(1.0), pace.expected) == (True, 1)


def test_a_quarter_more_is_tried_now_and_then_but_never_where_one_comes_alone() -> None:
    alone, eight = seen(), seen()
    for _ in range(16):
        alone.met(1)
        eight.met(8)
    assert (alone.expected, eight.expected) == (1, 11)


def test_the_more_are_expected_the_longer_they_are_waited_for_up_to_a_bound() -> None:
    pace = seen()
    waits = [pace.patience]
    for count in (8, 16, 1000):
        pace.met(count)
        waits.append(pace.patience)
    assert waits == sorted(set(waits))
    assert (waits[0] < 0.001, waits[-1] < 0.01) == (True, True)
