"""A failure that comes again and again is told once, and then counted."""

from __future__ import annotations

from paramsync.host.repeats import Repeats


def test_a_failure_is_told_once_and_then_at_each_power_of_ten() -> None:
    repeats = Repeats()
    told = [text for at in range(1, 1001) if (text := repeats.text(f"version {at} was not published: disk full"))]
    assert told == [
        "version 1 was not published: disk full",
        *(f"version {at} was not published: disk full (failure {at} of this kind in a row)" for at in (10, 100, 1000)),
    ]
    assert repeats.over() == 1000
    assert repeats.over() == 0


def test_another_failure_is_told_and_so_is_the_same_after_it_went_well() -> None:
    repeats = Repeats()
    assert [repeats.text(text) for text in ("a 1", "a 2", "b", "a 3")] == ["a 1", None, "b", "a 3"]
    assert repeats.over() == 1
    assert repeats.text("a 4") == "a 4"
