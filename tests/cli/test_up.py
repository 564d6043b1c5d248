"""The parts of `paramsync up`."""

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
from rich.console import Console

from paramsync.cli import display
from paramsync.cli.__main__ import main
from paramsync.cli.display import UpScreen, chart, picture
from paramsync.cli.folders import fast_place, remove_left_behind, run_folder
from paramsync.cli.observer import Example, HeldOut, Ledger, Observer, Prober
from paramsync.cli.programs import Child, end_all
from paramsync.rpc.client import Inferencer, Predictor, Trainer
from paramsync.v1 import sync_pb2 as pb
from tests.support.programs import eventually
from tests.support.servers import SERVING, TRAINING, add_predictions, add_publisher, add_sync, serving

IMAGE = np.linspace(0, 1, 784, dtype=np.float32)


def answer(version: int, at: float) -> Example:
    return Example(IMAGE, label=3, predicted=3, version=version, at=at)


def seen_run() -> Ledger:
    """Twenty versions, published every second, of which each is a little better."""
    ledger = Ledger()
    for number in range(1, 21):
        version = pb.Version(number=number, step=number, step_done_at=1000 + number, committed_at=1000.01 + number)
        ledger.published(version)
        ledger.swapped(pb.Event(version=version, at=1000.015 + number))
        ledger.answered(answer(number, 1000.02 + number), batch=0, right=number)
        ledger.scored(number, examples=20)
    ledger.training, ledger.model = TRAINING, SERVING
    return ledger


def test_a_line_tells_of_one_look_what_is_published_served_and_the_lag_between_them() -> None:
    ledger, newest = Ledger(), pb.Version(number=421, committed_at=1001.0)
    ledger.training = pb.PublisherStatus(published=newest)  # of which the inferencer had not heard when it was asked
    served = pb.Version(number=420, committed_at=1000.0)
    ledger.model = pb.ModelStatus(published=served, serving=served, lag_seconds=0, lag_steps=0)
    assert "published 420  serving 420  lag 0 ms, 0 steps" in display.line(ledger, elapsed=5)
    ledger.model = None
    assert "published 421" in display.line(ledger, elapsed=5)


def test_the_summary_tells_first_from_last() -> None:
    summary = seen_run().summary()
    assert summary.pop("freshness_ms_p50") == pytest.approx(20, abs=0.1)
    assert summary == {
        "published": 20, "served": 20, "predictions": 20, "failed": 0, "first_accuracy": 0.05, "last_accuracy": 1.0,
    }  # fmt: skip


def test_what_was_served_counts_as_published_where_nobody_said_so() -> None:
    ledger = Ledger()
    ledger.answered(answer(7, 1000.5), batch=0, right=1)
    assert (ledger.summary()["published"], ledger.summary()["served"]) == (1, 1)


def test_a_run_that_saw_nothing_has_a_summary_too() -> None:
    summary = Ledger().summary()
    assert (summary["published"], summary["first_accuracy"], summary["freshness_ms_p50"]) == (0, None, None)


def test_freshness_counts_the_first_answer_of_a_version_only() -> None:
    ledger = Ledger()
    ledger.answered(answer(1, 1000.5), batch=0, right=1)
    ledger.answered(answer(1, 1009.0), batch=0, right=1)
    ledger.published(pb.Version(number=1, step_done_at=1000))
    assert ledger.summary()["freshness_ms_p50"] == 500


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("ledger", [seen_run(), Ledger()], ids=["running", "nothing yet"])
def test_a_frame_fits_its_terminal(ledger: Ledger, width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, markup=False)
    console.print(display.frame(ledger, elapsed=5, store="/dev/shm/store", width=width, shades=True))
    lines = out.getvalue().splitlines()
    assert len(lines) == 22 or width < 80
    assert max(map(len, lines)) <= width
    assert len(display.line(ledger, elapsed=5).splitlines()) == 1


@pytest.mark.parametrize("width", [20, 40, 69])
def test_a_narrow_terminal_gets_the_line_broken_between_its_parts(width: int) -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=width, height=24, force_terminal=True, color_system=None, markup=False)
    ledger = seen_run()
    with UpScreen(terminal, store="/s") as screen:
        screen.show(ledger)
    text = out.getvalue()
    for part in ("step 7", "412 steps/s", "published 421", "serving 420", "lag 12 s, 1 step", "accuracy 100.0%"):
        assert part in text
    assert "│" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_echo_of_ctrl_c_does_not_break_the_last_line(width: int) -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=width, height=24, force_terminal=True, color_system=None, markup=False)
    with UpScreen(terminal, store="/s") as screen:
        screen.show(seen_run())
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).splitlines()
    assert max(map(len, lines)) <= width - len("^C")


def test_a_terminal_that_cannot_redraw_gets_lines_while_it_waits() -> None:
    out = io.StringIO()
    dumb = Console(file=out, width=80, force_terminal=True, _environ={"TERM": "dumb"}, markup=False)
    with UpScreen(dumb, store="/s") as screen:
        screen.wait("waiting for the trainer to start")
        assert out.getvalue() == "waiting for the trainer to start\n"
        screen.show(seen_run())
    assert "serving 420" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_without_colours_a_digit_is_an_outline() -> None:
    ledger = seen_run()
    for environment, blocks in ({}, 28), ({"NO_COLOR": "1"}, 0):
        out = io.StringIO()
        terminal = Console(
            file=out, width=80, height=24, force_terminal=True, color_system="256", _environ=environment, markup=False
        )
        with UpScreen(terminal, store="/s") as screen:
            screen.show(ledger)
        first = out.getvalue().splitlines()[6]  # the upper lines of the image are black
        assert first.count("▀") == blocks


def test_a_frame_shows_what_counts() -> None:
    out = io.StringIO()
    ledger = seen_run()
    frame = display.frame(ledger, elapsed=5, store="/s", width=80, shades=False)
    Console(file=out, width=80).print(frame)
    text = out.getvalue()
    for fact in (
        "CPU",
        "7/100 of epoch 1",
        "412 steps/s",
        "+5 ms",
        "100.0%",
        "lag 12 s, 1 step",
        "3: right",
        "failed 0",
    ):
        assert fact in text


def test_a_picture_is_half_as_many_lines_as_pixels() -> None:
    for shades in (True, False):
        lines = picture(IMAGE, shades=shades).plain.splitlines()
        assert [len(line) for line in lines] == [28] * 14
    black_and_white = picture(np.array([[0, 1], [1, 1]], np.float32), shades=False).plain
    assert black_and_white == "▄█"


def test_a_chart_of_many_values_ends_with_the_last() -> None:
    rows = chart([0.0] * 999 + [1.0], width=10, height=2).plain.splitlines()
    assert rows == ["         █", "▁▁▁▁▁▁▁▁▁█"]


@contextmanager
def probing(ledger: Ledger, folder: Path, *, model: str, images: np.ndarray, labels: np.ndarray) -> Iterator[Prober]:
    np.savez(folder / "held_out.npz", x=images, y=labels)
    held_out = HeldOut.read(folder / "held_out.npz")
    with serving(add_predictions) as address, Predictor(address) as predictor:
        yield Prober(predictor, held_out, ledger, model=model, input_name="image")


def test_a_new_version_is_asked_the_whole_sample_before_the_prober_rests(tmp_path: Path) -> None:
    ledger = Ledger()
    scores = np.eye(10, dtype=np.float32)[np.arange(250) % 10]
    labels = np.where(np.arange(250) < 50, 11, np.arange(250) % 10)
    with probing(ledger, tmp_path, model="digits", images=scores, labels=labels) as prober:
        assert [prober.run_once() for _ in range(4)] == [True, True, False, False]
    summary = ledger.summary()
    assert (summary["predictions"], summary["served"], summary["first_accuracy"]) == (4, 1, 0.8)


def test_a_request_that_fails_is_counted_and_its_reason_kept(tmp_path: Path) -> None:
    ledger = Ledger()
    with probing(
        ledger, tmp_path, model="waiting", images=np.zeros((5, 10), np.float32), labels=np.zeros(5, int)
    ) as prober:
        assert not prober.run_once()
    assert ledger.summary()["failed"] == 1
    assert ledger.last_failure == "model 'waiting' is not serving: store /s is empty"


def test_an_observer_notes_what_both_programs_tell_and_how_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "held_out.npz", x=np.zeros((5, 10), np.float32), y=np.zeros(5, int))
    ledger = Ledger()
    with (
        serving(add_publisher, add_sync, add_predictions) as address,
        Trainer(address) as trainer,
        Inferencer(address) as inferencer,
        Predictor(address) as predictor,
    ):
        held_out = HeldOut.read(tmp_path / "held_out.npz")
        prober = Prober(predictor, held_out, ledger, model="digits", input_name="image")
        observer = Observer(trainer, inferencer, prober, ledger, model="digits")
        observer.start()

        def has_all() -> bool:
            observer.run_once()
            newest = ledger.newest(9)
            return [seen.number for seen in newest] == [420, 7, 6, 5] and newest[0].served_after is not None

        eventually(has_all, lambda: str(ledger.newest(9)))
        observer.stop()
    assert (ledger.training, ledger.model) == (TRAINING, SERVING)
    assert ledger.summary()["first_accuracy"] == 1


def test_temporary_files_go_to_disk_where_memory_has_no_room(tmp_path: Path) -> None:
    elsewhere = Path(tempfile.gettempdir())
    assert fast_place(tmp_path, room=1) == tmp_path
    assert fast_place(tmp_path, room=2**62) == elsewhere
    assert fast_place(tmp_path / "nosuch") == elsewhere


def test_a_folder_goes_with_its_run(tmp_path: Path) -> None:
    with run_folder(tmp_path) as folder:
        (folder / "store").mkdir()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_run_is_removed_by_the_next_one(tmp_path: Path) -> None:
    code = f"""
import os, pathlib
from paramsync.cli.folders import run_folder
with run_folder(pathlib.Path({str(tmp_path)!r})) as folder:
    (folder / "store").mkdir()
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    assert (left / "store").exists()
    remove_left_behind(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_another_run_uses_or_is_not_of_a_run_stays(tmp_path: Path) -> None:
    (tmp_path / "paramsync-up-file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "paramsync-up-link").symlink_to(tmp_path / "elsewhere")
    with run_folder(tmp_path) as folder:
        before = sorted(tmp_path.iterdir())
        remove_left_behind(tmp_path)
        assert sorted(tmp_path.iterdir()) == before
        assert folder in before


def test_a_taken_port_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["up", "--control-port", str(port)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"paramsync up: port {port} of 127.0.0.1 is taken; choose another with --control-port")


def test_one_port_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--port", "18999", "--trainer-port", "18999"]) == 2
    assert "expected two different ports, found 18999 for both --port and --trainer-port" in capsys.readouterr().err


PROGRAMS = {
    "polite": "print('polite ready: control 127.0.0.1:1, predictions 127.0.0.1:2', flush=True); signal.pause()",
    "stubborn": "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('stubborn ready: ', flush=True); signal.pause()",
    "broken": "print('broken ready: '); raise SystemExit('no luck')",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with programs that children can run."""
    for name, code in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(f"import signal\n{code}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(program: str, folder: Path) -> Child:
    """A child that has come as far as its first line."""
    child = Child(program, [], log=folder / "log")
    eventually(lambda: (folder / "log").read_text().endswith("\n"), lambda: f"a line of {program}")
    return child


def test_a_child_says_where_it_listens(folder: Path) -> None:
    child = started("polite", folder)
    assert child.addresses() == {"control": "127.0.0.1:1", "predictions": "127.0.0.1:2"}
    assert end_all([child], seconds=30) == []


def test_a_child_that_does_not_end_is_killed(folder: Path) -> None:
    child = started("stubborn", folder)
    (fault,) = end_all([child], seconds=0.01)
    assert fault.startswith("stubborn did not end when it was asked to, and was killed")
    assert child.ended


def test_a_child_that_ended_by_itself_is_told_with_its_last_words(folder: Path) -> None:
    child = Child("broken", [], log=folder / "log")
    fault = child.wait(30)
    assert fault is not None
    assert fault.startswith("broken ended by itself, exit code 1; the end of its log:")
    assert fault.endswith("no luck")
