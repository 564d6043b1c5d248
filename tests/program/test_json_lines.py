"""Log records as JSON: one line each, whatever is in them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

from paramsync.program.json_lines import JsonLines


def line(message: str, *arguments: object, **fields: Any) -> str:
    """Of a record that no logger has: pytest could not report text that is no Unicode."""
    record = logging.makeLogRecord(
        {"name": "paramsync.test", "levelname": "INFO", "msg": message, "args": arguments, **fields}
    )
    return JsonLines().format(record)


def test_a_record_is_one_line_with_what_is_known_of_it() -> None:
    first = json.loads(line("%s: version %d serves", "m", 7, model="m", version=7, step=None))
    time = first.pop("time")
    assert len(time) == len("2026-01-01T00:00:00.000Z")
    assert time.endswith("Z")
    assert first == {
        "level": "INFO", "logger": "paramsync.test", "message": "m: version 7 serves", "model": "m", "version": 7,
    }  # fmt: skip
    assert json.loads(line("no model")).keys() == {"time", "level", "logger", "message"}


def test_what_a_stranger_named_begins_no_line_and_hides_nothing() -> None:
    for name in ('m\n{"level": "ERROR"}', "\r\x1b[2K\x00", "\u2028\u2029\u202e", "\ud800", '"}', "\xe9" * 1000):
        text = line("%s: waits", name, model=name)
        assert text.isascii()
        assert text.isprintable()
        event = json.loads(text)
        assert [event["message"], event["model"], event["level"]] == [f"{name}: waits", name, "INFO"]


def test_an_exception_is_a_field() -> None:
    try:
        int("two\nlines")
    except ValueError:
        text = line("it failed", exc_info=sys.exc_info())
    assert "\n" not in text
    event = json.loads(text)
    assert event["message"] == "it failed"
    assert event["exception"].startswith("Traceback")
    assert event["exception"].endswith(r"'two\nlines'")


def test_what_python_itself_would_write_is_logged_too() -> None:
    script = """
import threading, warnings
from paramsync.program.process import start_logging
start_logging("json")
warnings.warn("old\\nways")
thread = threading.Thread(target=lambda: [].pop())
thread.start()
thread.join()
1 / 0
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    warned, thread, ended = (json.loads(line) for line in done.stderr.splitlines())
    assert "old\nways" in warned["message"]
    assert (thread["level"], thread["exception"].splitlines()[-1]) == ("ERROR", "IndexError: pop from empty list")
    assert (ended["level"], ended["exception"].splitlines()[-1]) == ("CRITICAL", "ZeroDivisionError: division by zero")
    assert done.returncode == 1
