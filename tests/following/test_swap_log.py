"""What the log says of swaps: one at once, many as one line."""

from __future__ import annotations

import logging

import pytest

from paramsync.following.report import SwapLog


def test_a_swap_is_logged_at_once_and_many_are_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "paramsync.follower")
    now = [100.0]
    log = SwapLog("m", clock=lambda: now[0])
    log.add(1, 0.002)
    log.flush()
    for number in range(2, 40):
        now[0] += 0.2
        log.add(number, 0.003)
        log.flush()
    assert caplog.messages == ["m: version 1 serves, after 2.0 ms"]
    now[0] += 3.0
    log.flush()  # the last of them is told although no other swap comes
    assert caplog.messages[1:] == ["m: version 39 serves, the last of 38 swaps in 11 s, each after 3.0 ms (median)"]
    log.flush()
    now[0] += 60.0
    log.flush()
    log.add(40, 0.004)
    log.flush()
    assert caplog.messages[2:] == ["m: version 40 serves, after 4.0 ms"]
    known = [(vars(record)["model"], vars(record)["version"]) for record in caplog.records]  # fields, in JSON
    assert known == [("m", 1), ("m", 39), ("m", 40)]
