"""`paramsync top`: from counts to rates and latencies, and the view."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from paramsync.cli.__main__ import main
from paramsync.cli.top import ServerSamples, Top, rate, sparkline
from paramsync.program.quantiles import quantile
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb
from tests.support.commands import only_line
from tests.support.servers import SERVING, add_models, serving

BOUNDS = [0.001, 0.01, 0.1]


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([10, 0, 0, 0], 0.5, 0.0005),
        ([0, 100, 0, 0], 0.99, 0.00991),
        ([0, 0, 0, 3], 0.5, 0.1),  # more than the last bound: nothing else is known
    ],
)
def test_a_quantile_is_where_prometheus_has_it(counts: list[int], share: float, seconds: float | None) -> None:
    assert quantile(BOUNDS, counts, share) == (None if seconds is None else pytest.approx(seconds))


def load(*latencies: int, refused: int = 0) -> pb.ModelLoad:
    return pb.ModelLoad(answered=sum(latencies), refused=refused, bounds=BOUNDS, latencies=latencies)


def test_a_rate_is_the_difference_of_two_counts_and_never_negative() -> None:
    found = rate(load(100, 0, 0, 0), load(100, 10, 0, 0, refused=4), 2.0)
    assert (found.answered, found.refused) == (5.0, 2.0)
    assert found.p50 == pytest.approx(0.0055)
    found = rate(load(100, 50, 0, 0, refused=9), load(3, 0, 0, 0), 1.0)  # a worker has ended
    assert (found.answered, found.refused, found.p50) == (0.0, 0.0, None)
    assert rate(pb.ModelLoad(), load(4, 0, 0, 0), 2.0).answered == 2.0


def test_a_sparkline_has_its_greatest_value_at_the_top_and_gaps_for_none() -> None:
    assert sparkline([0.1, None, 0.05, 0.1]) == "█ ▅█"
    assert sparkline([]) == ""


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_view_fits_its_terminal(width: int, nobody: str) -> None:
    with serving(add_models(SERVING)) as address, Inferencer(address) as here, Inferencer(nobody) as away:
        servers = [ServerSamples(inferencer, "") for inferencer in (here, away)]
        for server in servers:
            server.polled.run_once()
        console = Console(file=io.StringIO(), width=width, markup=False)
        console.print(Top(servers).drawn())
        lines = list(Top(servers).lines())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(cell_len, text.splitlines())) <= width
    assert all(fact in text for fact in ("digits", "420", "answering", "30 MB", f"{nobody}: not reachable"))
    assert f"{address} digits: version 420" in lines[0]
    assert f"{nobody}: not reachable" in lines[1]


def test_an_unknown_model_is_one_line(inferencer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "cats", "--server", inferencer]) == 1
    assert only_line(capsys.readouterr().err) == "paramsync top: model 'cats' is not served here; served: 'digits'"
