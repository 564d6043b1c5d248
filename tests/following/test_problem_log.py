"""Trouble that comes anew with each version is logged once, and then counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramsync.following.report import Report


def test_trouble_that_differs_by_its_version_alone_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    report = Report("m", Path("store"), pinned=None, clock=lambda: 0.0)
    for number in (1, 1, 2, 2, 3):
        report.error(f"version {number} is tried again: Cannot allocate memory")
    assert report.now().reason == "version 3 is tried again: Cannot allocate memory"
    report.error("")
    report.error("version 4 is tried again: Cannot allocate memory")
    assert caplog.messages == [f"m: version {number} is tried again: Cannot allocate memory" for number in (1, 4)]
