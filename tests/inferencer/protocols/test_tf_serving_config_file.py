"""The file of models of TensorFlow Serving, looked at again and again."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from inferencer.protocols.tfs.config_file import ConfigFile
from paramsync.errors import RequestError


class Applied:
    """What was asked for, and what is said to it."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []
        self.error: Exception | None = None

    async def apply(self, config: Any, *, seconds: float | None) -> None:
        self.names.append([one.name for one in config.model_config_list.config])
        if self.error is not None:
            raise self.error


def text(*names: str) -> str:
    return (
        "model_config_list { " + " ".join(f'config {{ name: "{name}" base_path: "/{name}" }}' for name in names) + " }"
    )


def looks(file: ConfigFile, *times: float) -> None:
    async def look() -> None:
        for now in times:
            await file.run_once(now)

    asyncio.run(look())


def test_what_is_the_same_is_applied_once(tmp_path: Path) -> None:
    path, applied = tmp_path / "models", Applied()
    file = ConfigFile(path, applied.apply)
    path.write_text(text("a"))
    looks(file, 1.0, 2.0, 3.0)
    path.write_text(f"# a remark\n{text('a')}\n")
    looks(file, 4.0)
    path.write_text(text("a", "b"))
    looks(file, 5.0, 6.0)
    assert applied.names == [["a"], ["a", "b"]]


def test_what_fails_is_tried_again_less_and_less_often_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, applied = tmp_path / "models", Applied()
    file = ConfigFile(path, applied.apply)
    path.write_text(text("a"))
    applied.error = RequestError("a cannot serve")
    with caplog.at_level(logging.ERROR):
        looks(file, *range(100, 700))
    assert 20 < len(applied.names) < 40
    assert [one.getMessage() for one in caplog.records] == [
        f"--model_config_file {path}: a cannot serve; what was served before goes on"
    ]
    applied.error = None
    path.write_text(text("b"))
    looks(file, 700.0)
    assert applied.names[-1] == ["b"]


def test_a_file_that_is_gone_for_a_moment_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, applied = tmp_path / "models", Applied()
    file = ConfigFile(path, applied.apply)
    path.write_text(text("a"))
    looks(file, 1.0)
    path.unlink()
    with caplog.at_level(logging.ERROR):
        looks(file, 2.0, 3.0)
    assert len(caplog.records) == 1
    path.write_text(text("a"))
    looks(file, 4.0)
    assert applied.names == [["a"]]
