"""The parts of `paramsync up`, and `paramsync top`: from counts to rates and latencies, and the view."""

from __future__ import annotations

import io
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from paramsync.cli.__main__ import main
from paramsync.cli.programs import Child, end_all
from paramsync.cli.top import ServerSamples, Top, rate, sparkline
from paramsync.cli.up import HeldOut, Prober, UpView, fast_place, temporary_folder
from paramsync.program.quantiles import quantile
from paramsync.rpc.client import Inferencer, Predictor, Trainer
from paramsync.v1 import sync_pb2 as pb
from tests.support.commands import only_line
from tests.support.programs import bounded, eventually
from tests.support.servers import SERVING, add_models, add_predictions, add_publisher, serving


@contextmanager
def viewed(folder: Path) -> Iterator[UpView]:
    """A view of stubs that answer with their inputs, of which a fifth is wrong."""
    scores = np.eye(10, dtype=np.float32)[np.arange(250) % 10]
    labels = np.where(np.arange(250) < 50, 11, np.arange(250) % 10)
    np.savez(folder / "held_out.npz", x=scores, y=labels)
    serves = pb.ModelStatus()
    serves.CopyFrom(SERVING)
    serves.serving.step_done_at = 1.0
    with (
        serving(add_publisher, add_models(serves), add_predictions) as address,
        Trainer(address) as trainer,
        Inferencer(address) as inferencer,
        Predictor(address) as predictor,
    ):
        yield UpView(trainer, inferencer, Prober(predictor, inferencer, HeldOut.read(folder / "held_out.npz")))


def test_each_version_answers_the_whole_sample_before_its_accuracy_is_told(tmp_path: Path) -> None:
    with viewed(tmp_path) as view:
        assert view.summary().last_accuracy is None
        for _ in range(3):
            view.prober.run_once()
    summary = view.summary()
    assert (summary.predictions, summary.failed, summary.served, summary.published) == (5, 0, 1, 1)
    assert (summary.first_accuracy, summary.last_accuracy) == (0.8, 0.8)
    assert summary.freshness_ms_p50 is not None
    assert "accuracy 80.0% at first, 80.0% at last; a step was answered from " in summary.sentences()


def test_a_request_that_fails_is_counted_and_its_reason_kept(tmp_path: Path, nobody: str) -> None:
    np.savez(tmp_path / "held_out.npz", x=np.zeros((5, 10), np.float32), y=np.zeros(5, int))
    with Predictor(nobody) as predictor, Inferencer(nobody) as inferencer:
        prober = Prober(predictor, inferencer, HeldOut.read(tmp_path / "held_out.npz"))
        prober.run_once()
        assert prober.failed == 1
        assert "not reachable" in prober.last_failure
        prober.close()
        prober.run_once()  # was cancelled
        assert prober.failed == 1


@pytest.mark.parametrize("width", [40, 80])
def test_the_view_shows_training_serving_and_accuracy_within_its_terminal(tmp_path: Path, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, markup=False)
    with viewed(tmp_path) as view:
        console.print(view.drawn())  # nothing is known yet
        for program in view.programs:
            program.run_once()
        console.print(view.drawn())
        (line,) = view.lines()
        assert list(view.lines()) == []  # not again at once
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    for fact in ("step 7", "412.0 steps/s", "digits", "420", "3 predictions, 0 failed", "accuracy 80.0%"):
        assert fact in re.sub(r"\s+", " ", text)
    assert "step 7, loss –, 412 steps/s, published 421, serving 420, lag 12 s, 1 step, accuracy 80.0%, failed 0" in line  # noqa: RUF001


def test_temporary_files_go_to_disk_if_memory_has_no_room(tmp_path: Path) -> None:
    elsewhere = Path(tempfile.gettempdir())
    assert fast_place(tmp_path, room=1) == tmp_path
    assert fast_place(tmp_path, room=2**62) == elsewhere
    assert fast_place(tmp_path / "nosuch") == elsewhere


def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    program = (
        "import pathlib, signal, sys; from paramsync.cli.up import temporary_folder\n"
        "with temporary_folder(pathlib.Path(sys.argv[1])) as folder: print(folder, flush=True); signal.pause()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with bounded(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        killed = Path(process.stdout.readline().strip())
        with temporary_folder(tmp_path) as other:
            assert sorted(tmp_path.iterdir()) == sorted([killed, other])
        process.kill()
        process.wait()
    with temporary_folder(tmp_path) as other:
        assert list(tmp_path.iterdir()) == [other]
    assert list(tmp_path.iterdir()) == []


def test_ports_that_are_taken_or_given_twice_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["up", "--control-port", str(port)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"paramsync up: port {port} of 127.0.0.1 is taken; choose another with --control-port")
    assert main(["up", "--port", "18999", "--trainer-port", "18999"]) == 2
    assert "expected two different ports, found 18999 for both --port and --trainer-port" in capsys.readouterr().err


PROGRAMS = {
    "polite": "print('polite ready: control 127.0.0.1:1, predictions 127.0.0.1:2', flush=True); signal.pause()",
    "stubborn": "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('stubborn ready: ', flush=True); signal.pause()",
    "broken": "print('broken ready: '); raise SystemExit('no luck')",
}


def started(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Child:
    """A child that has printed its first line."""
    (folder / f"{program}.py").write_text(f"import signal\n{PROGRAMS[program]}\n")
    monkeypatch.chdir(folder)
    child = Child(program, [], log=folder / "log")
    eventually(lambda: "ready: " in (folder / "log").read_text(), lambda: f"a line of {program}")
    return child


def test_a_child_says_where_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = started("polite", tmp_path, monkeypatch)
    eventually(child.addresses, lambda: "addresses")
    assert child.addresses() == {"control": "127.0.0.1:1", "predictions": "127.0.0.1:2"}
    assert end_all([child], seconds=30) == []


def test_a_child_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = started("stubborn", tmp_path, monkeypatch)
    (fault,) = end_all([child], seconds=0.01)
    assert fault.startswith("stubborn did not end when it was asked to, and was killed")
    assert child.ended


def test_a_child_that_ended_by_itself_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = started("broken", tmp_path, monkeypatch).wait(300)
    assert fault is not None
    assert fault.startswith("broken ended by itself, exit code 1; the end of its log:")
    assert fault.endswith("no luck")


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
