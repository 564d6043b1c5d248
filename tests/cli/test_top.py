"""`paramsync top`: from counts to rates and latencies, what it looks like, and what it says of a real server."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from paramsync.cli.__main__ import main
from paramsync.cli.top import Picture, ServerSamples, quantile, rate, sparkline
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb
from tests.support.commands import only_line
from tests.support.running import Running, request
from tests.support.servers import SERVING, add_models, serving

BOUNDS = [0.001, 0.01, 0.1]


@pytest.mark.parametrize(
    ("counts", "share", "found"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([10, 0, 0, 0], 0.5, 0.0005),
        ([5, 5, 0, 0], 0.5, 0.001),
        ([0, 100, 0, 0], 0.99, 0.00991),
        ([0, 0, 0, 3], 0.5, 0.1),  # more than the last bound: nothing else is known
    ],
)
def test_a_quantile_is_where_prometheus_has_it(counts: list[int], share: float, found: float | None) -> None:
    assert quantile(BOUNDS, counts, share) == (None if found is None else pytest.approx(found))


def load(*latencies: int, refused: int = 0) -> pb.ModelLoad:
    return pb.ModelLoad(answered=sum(latencies), refused=refused, bounds=BOUNDS, latencies=latencies)


def test_a_rate_is_the_difference_of_two_counts() -> None:
    found = rate(load(100, 0, 0, 0), load(100, 10, 0, 0, refused=4), 2.0)
    assert (found.answered, found.refused) == (5.0, 2.0)
    assert found.p50 == pytest.approx(0.0055)


def test_counts_that_fall_are_no_rate() -> None:
    found = rate(load(100, 50, 0, 0, refused=9), load(3, 0, 0, 0), 1.0)
    assert (found.answered, found.refused, found.p50) == (0.0, 0.0, None)


def test_a_first_count_is_compared_with_nothing() -> None:
    assert rate(pb.ModelLoad(), load(4, 0, 0, 0), 2.0).answered == 2.0


def test_a_sparkline_has_its_greatest_value_at_the_top_and_gaps_where_there_is_none() -> None:
    assert sparkline([0.1, None, 0.05, 0.1]) == "█ ▅█"
    assert sparkline([]) == sparkline([None])[:0] == ""


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_picture_fits_its_terminal(width: int, nobody: str) -> None:
    long = pb.ModelStatus(model="recommender-candidate-generation-tower-european-union")
    with serving(add_models(SERVING, long)) as address, Inferencer(address) as here, Inferencer(nobody) as away:
        servers = [ServerSamples(inferencer, "", threading.Event()) for inferencer in (here, away)]
        for server in servers:
            server.watched.run_once()
            server.run_once()
        out = io.StringIO()
        Console(file=out, width=width, markup=False).print(Picture(servers))
    lines = out.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    assert sum(not line.strip() for line in lines) <= 2 or width == 40  # above each table, and nowhere else
    text = out.getvalue()
    for fact in ("digits", long.model, "not reachable", "answering", "ended"):
        assert fact in text or width == 40  # where names are broken


def test_an_unknown_model_is_one_line(inferencer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "cats", "--server", inferencer, "--seconds", "5"]) == 1
    assert only_line(capsys.readouterr().err) == "paramsync top: model 'cats' is not served here; served: 'digits'"


@pytest.mark.slow
def test_top_tells_what_a_real_server_answers(served: Running) -> None:
    """Rates of a server whose one worker answers as fast as one caller asks."""
    over = threading.Event()
    asked = itertools.count()

    def ask() -> None:
        while not over.is_set():
            served.prediction_service.Predict(request(), timeout=30)
            next(asked)

    caller = threading.Thread(target=ask)
    caller.start()
    server = f"127.0.0.1:{served.control_port}"
    command = [sys.executable, "-m", "paramsync.cli", "top", "--server", server, "--seconds", "4", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        over.set()
        caller.join()
    samples: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    (model,) = samples[-1]["models"]
    assert (model["model"], model["version"]) == ("m", 7)
    assert 0 < model["answered_per_second"] < next(asked)
    assert 0 < model["p50_seconds"] <= model["p99_seconds"]
    (worker,) = samples[-1]["workers"]
    assert (worker["state"], worker["restarts"]) == ("answering", 0)
    assert Path(f"/proc/{worker['pid']}").exists()
