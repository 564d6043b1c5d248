"""The README's own lines work: its Python is run as it stands, against the inferencer it says to start."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from paramsync.store.store import Store
from tests.programs import ROOT, Program, eventually

pytestmark = pytest.mark.slow


def blocks(language: str) -> list[str]:
    """The README's blocks of code in one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_what_the_readme_says_to_train_serve_and_call_works(tmp_path: Path) -> None:
    store = tmp_path / "digits"
    fit, loop, call, own = (block.replace("/dev/shm/digits", str(store)) for block in blocks("python"))
    (serve,) = (block for block in blocks("sh") if "digits=" in block)
    arguments = serve.replace("/dev/shm/digits", str(store)).split()[2:]
    with Program(*arguments, "--port", "0", "--control-port", "0", log=tmp_path / "log") as serving:
        address = serving.said(r"predictions (\S+:\d+)")[1]
        script = (
            fit
            + loop
            + call.replace("127.0.0.1:8500", address).replace(
                "stub.Predict(request)", "stub.Predict(request, wait_for_ready=True)"
            )
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        latest = eventually(lambda: Store(store).latest(), lambda: "a version")
        assert latest.step == 500
        assert re.search(r"^\d+ \[\[", done.stdout, re.MULTILINE), done.stdout
        assert serving.stop() == 0
    done = subprocess.run([sys.executable, "-c", own], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^{latest.number} \[\[", done.stdout, re.MULTILINE), done.stdout
    for command in ("versions", "verify", "graph show", "graph tensorboard"):
        (row,) = re.findall(rf"^\| `paramsync ({command} [^`]*)`", (ROOT / "README.md").read_text(), re.MULTILINE)
        words = row.replace("/dev/shm/digits", str(store)).replace(" logs", f" {tmp_path / 'logs'}").split()
        subprocess.run([sys.executable, "-m", "paramsync.cli", *words], check=True)
