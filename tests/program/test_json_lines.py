"""Log records as JSON: one line each, whatever is in them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from paramsync.program.json_lines import JsonLines


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("paramsync.test")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield logger, stream
    logger.removeHandler(handler)


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().split("\n")[:-1]]


def test_a_record_is_one_line_with_what_is_known_of_it(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    logger.info("%s: version %d serves", "m", 7, extra={"model": "m", "version": 7})
    logger.warning("no model")
    first, second = events(stream)
    time = first.pop("time")
    assert len(time) == len("2026-01-01T00:00:00.000Z")
    assert time.endswith("Z")
    assert first == {
        "level": "INFO", "logger": "paramsync.test", "message": "m: version 7 serves", "model": "m", "version": 7,
    }  # fmt: skip
    assert second.keys() == {"time", "level", "logger", "message"}


@pytest.mark.parametrize(
    "name", ['m\n{"level": "ERROR"}', "\r\x1b[2K\x00", "\u2028\u2029\u202e", "\ud800", '"}', "é" * 1000]
)
def test_what_a_stranger_named_begins_no_line_and_hides_nothing(
    log: tuple[logging.Logger, io.StringIO], name: str
) -> None:
    logger, stream = log
    logger.info("%s: waits", name, extra={"model": name})
    text = stream.getvalue()
    assert text.isascii()
    assert text[:-1].isprintable()
    [event] = events(stream)
    assert (event["message"], event["model"], event["level"]) == (f"{name}: waits", name, "INFO")


def test_an_exception_is_a_field(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    try:
        int("two\nlines")
    except ValueError:
        logger.exception("it failed")
    [event] = events(stream)
    assert event["message"] == "it failed"
    assert event["exception"].startswith("Traceback")
    assert event["exception"].endswith(r"'two\nlines'")
