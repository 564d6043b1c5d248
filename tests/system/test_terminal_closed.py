"""A terminal that is closed ends a program as SIGTERM does: the last step is published and saved."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support import jobs
from tests.support.programs import PATIENCE, ROOT
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


@pytest.mark.promise
@pytest.mark.slow
def test_a_trainer_whose_terminal_is_closed_publishes_and_saves_its_last_step(tmp_path: Path) -> None:
    jobs.put(tmp_path)
    arguments = ["--store", "store", "--control-port", "0", "--every-seconds", "3600", "--job", "small_job:small"]
    ours, theirs = pty.openpty()
    trainer = subprocess.Popen(
        [sys.executable, "-c", _OWNING, sys.executable, "-m", "trainer", *arguments],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    os.close(theirs)
    killer = threading.Timer(PATIENCE, trainer.kill)
    killer.start()
    shown = ""
    while not re.search(r"step [1-9][\d,]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)):
        shown += os.read(ours, 65536).decode(errors="replace")  # an OSError once the trainer has ended
    os.close(ours)
    assert trainer.wait() == 0
    killer.cancel()
    store = tmp_path / "store"
    assert latest(store).step > 0
    saved = tf.train.load_checkpoint(str(store / "training"))
    assert saved.get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == latest(store).step
