"""Helpers for tests of the operator's commands: a store to look at, and readers of one line or one JSON object."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramsync.cli.__main__ import main
from paramsync.store.commit import StoreWriter
from paramsync.store.store import add_checksum
from paramsync.v1 import graph_pb2
from tests.support.written import version

NAMES = ("dense/bias", "dense/kernel", "words")


def three_versions(path: Path) -> Path:
    """A store of versions 10, 20 and 30, each of `NAMES`."""
    with StoreWriter(path) as writer:
        for number in (10, 20, 30):
            kernel = np.random.default_rng(number).standard_normal((64, 128), np.float32)
            writer.add_graph("ab" * 20, add_checksum(graph_pb2.Graph(digest="ab" * 20).SerializeToString()))
            tensors = {"dense/kernel": kernel, "dense/bias": kernel[0] + 1, "words": np.array([b"yes", b"no"], object)}
            writer.commit(version(number, graph="ab" * 20), tensors)
    return path


def cut(path: Path) -> None:
    """Remove half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def json_of(arguments: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 0) -> dict[str, Any]:
    """The output of a command with --json: one object on one line."""
    assert main([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(only_line(capsys.readouterr().out))
    return found


def only_line(text: str) -> str:
    (line,) = text.splitlines()
    return line
