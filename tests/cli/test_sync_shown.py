"""What `paramsync sync` shows while it waits: bars on a terminal, a line a second elsewhere, nothing if it is quick."""

from __future__ import annotations

import re

import pytest

from paramsync.cli.servers import ServerChange
from paramsync.cli.sync import _Lines
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb
from tests.support.servers import CORRUPT
from tests.support.terminals import on_terminal

VERIFYING = pb.SyncProgress(phase=pb.SyncProgress.VERIFYING, version=7, bytes_done=5_000_000, bytes_total=10_000_000)


@pytest.mark.parametrize("columns", [40, 80])
def test_a_terminal_shows_how_far_it_is_and_then_why_it_failed(columns: int, inferencer: str) -> None:
    code, drawn = on_terminal("sync", "--version", str(CORRUPT), "--server", inferencer, columns=columns, TERM="xterm")
    assert code == 1
    assert "5/10 bytes" in drawn
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn)
    bars = [line for line in re.split(r"[\r\n]+", plain) if "bytes" in line]
    assert max(map(len, bars)) <= columns
    assert plain.rstrip().endswith(
        "version 2 was refused: not finite; what served goes on serving, see `paramsync status`"
    )


def test_what_takes_long_is_a_line_where_nobody_draws(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Inferencer(nobody) as inferencer:
        change = ServerChange(inferencer, "m")
        names = {id(change): "m: "}
        _Lines(names).show(change, VERIFYING)
        assert capsys.readouterr().err == ""
        lines = _Lines(names, every=0.0)
        lines.show(change, VERIFYING)
        lines.show(change, pb.SyncProgress(phase=pb.SyncProgress.DONE))
        assert capsys.readouterr().err == "m: verifying version 7, 5.0 MB of 10 MB\n"
