"""Crashes and CrashLoops: which version is the cause, and when a worker is in a loop."""

from __future__ import annotations

from inferencer.supervisor.crashes import QUICK_SECONDS, Crashes, CrashLoops


def test_the_version_that_was_computed_in_three_crashes_is_the_cause() -> None:
    crashes = Crashes()
    assert crashes.add({1, 2}, 10.0) == []
    assert crashes.add({1, 3}, 11.0) == []
    assert crashes.add({1}, 12.0) == [1]
    assert crashes.add({2}, 13.0) == []  # what was computed beside it is not suspected any more
    assert crashes.add({2}, 14.0) == []


def test_of_two_that_were_always_computed_together_none_is_the_cause_until_it_was_six_times() -> None:
    crashes = Crashes()
    assert [crashes.add({1, 2}, float(now)) for now in range(5)] == [[]] * 5
    assert sorted(crashes.add({1, 2}, 5.0)) == [1, 2]


def test_crashes_of_more_than_a_minute_ago_and_such_of_nothing_do_not_count() -> None:
    crashes = Crashes()
    assert [crashes.add({1}, now) for now in (0.0, 40.0, 80.0, 120.0)] == [[]] * 4
    assert [crashes.add((), now) for now in (121.0, 122.0, 123.0)] == [[]] * 3


def test_a_worker_that_ends_three_times_soon_after_its_start_is_in_a_loop_until_it_lives() -> None:
    loops = CrashLoops()
    assert [loops.ended(0, 1.0, "SIGSEGV") for _ in range(2)] == [1, 2]
    assert loops.trouble == ""
    assert loops.ended(1, QUICK_SECONDS + 1, "SIGSEGV") == 0
    assert loops.ended(0, 1.0, "SIGSEGV") == 3
    assert loops.trouble == "worker 0 ended 3 times in a row soon after its start (SIGSEGV)"
    loops.calm(0)
    assert loops.trouble == ""
