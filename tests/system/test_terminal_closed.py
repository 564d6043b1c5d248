"""A terminal that is closed ends the programs as SIGTERM does: nothing is lost, and drawing there harms nobody."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support import jobs
from tests.support.inferencers import LONG, of_gated
from tests.support.programs import PATIENCE, ROOT, eventually
from tests.support.published import GATED_OPS, Gated, Publisher
from tests.support.training import latest

LISTEN = """
import signal
from paramsync.program.process import Stop
stop = Stop()
stop.listen()
signal.raise_signal(signal.SIGHUP)
print("goes on")
"""


@pytest.mark.parametrize(("before", "said"), [("", ""), ("nohup", "goes on\n")])
def test_a_program_that_has_nothing_to_finish_ends_unless_it_was_told_to_outlive_its_terminal(
    before: str, said: str
) -> None:
    command = [*before.split(), sys.executable, "-c", LISTEN]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, said)


_OWNING = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """A program that owns a terminal, which shows what it says until it is closed."""

    def __init__(self, *arguments: str, folder: Path = ROOT) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWNING, sys.executable, "-m", *arguments],
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def until(self, pattern: str) -> re.Match[str]:
        """Read on until what was shown has a match."""
        deadline = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text))):
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            if select.select([self._ours], [], [], 1)[0]:
                with contextlib.suppress(OSError):  # it ended
                    self.text += os.read(self._ours, 65536).decode(errors="replace")
        return match

    def close(self) -> None:
        os.close(self._ours)


@contextlib.contextmanager
def on_terminal(*arguments: str, folder: Path = ROOT) -> Iterator[Terminal]:
    terminal = Terminal(*arguments, folder=folder)
    killer = threading.Timer(PATIENCE, terminal.process.kill)
    killer.start()
    try:
        yield terminal
    finally:
        killer.cancel()
        terminal.process.kill()
        terminal.process.wait()


@pytest.mark.promise
@pytest.mark.slow
def test_a_trainer_whose_terminal_is_closed_publishes_and_saves_its_last_step(tmp_path: Path) -> None:
    jobs.put(tmp_path)
    arguments = ["--store", "store", "--control-port", "0", "--every-seconds", "3600", "--job", "small_job:small"]
    with on_terminal("trainer", *arguments, folder=tmp_path) as terminal:
        terminal.until(r"step [1-9][\d,]+")
        terminal.close()
        assert terminal.process.wait(PATIENCE) == 0
    store = tmp_path / "store"
    assert latest(store).step > 0
    saved = tf.train.load_checkpoint(str(store / "training"))
    assert saved.get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == latest(store).step


@pytest.mark.slow
def test_an_inferencer_whose_terminal_is_closed_answers_what_is_under_way(tmp_path: Path, publisher: Publisher) -> None:
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    publisher.publish(4, kind=Gated)
    allowed = [word for op in GATED_OPS for word in ("--allow-op", op)]
    ports = ["--port", "0", "--control-port", "0"]
    with on_terminal("inferencer", "--model", f"m={tmp_path / 'm'}", *allowed, *ports) as terminal:
        terminal.until("version 4 serves")
        address = terminal.until(r"inferencer ready: predictions (\S+),")[1]
        with grpc.insecure_channel(address) as channel:
            called, gate = tmp_path / "called", tmp_path / "gate"
            predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
            answer = predict.future(of_gated(called, gate), timeout=LONG, wait_for_ready=True)
            eventually(called.exists, lambda: "the request to be computed")
            terminal.close()
            with pytest.raises(subprocess.TimeoutExpired):
                terminal.process.wait(1)
            gate.touch()
            assert list(answer.result().outputs["seen"].float_val) == [4.0] * 6
        assert terminal.process.wait(PATIENCE) == 0
