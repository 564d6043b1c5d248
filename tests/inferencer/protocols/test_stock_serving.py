"""The real server and a client of TensorFlow Serving, each in a process of its own; curl's part is played by http."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.examples import Store
from tests.support.http import call
from tests.support.programs import PATIENCE, ROOT, Program, eventually

pytestmark = pytest.mark.slow


def test_an_unmodified_client_is_answered_in_every_call_it_offers(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with Store.make(path, tmp_path / "saved") as store:
        store.publish(3)
        arguments = ("--model", f"m={path}", "--port", "0", "--rest-port", "0", "--control-port", "0", "--state")
        with Program("inferencer", *arguments, tmp_path / "state", log=tmp_path / "log") as server:
            ready = server.said(r"ready: predictions (\S+), control \S+, HTTP \S+:(\d+)")
            address, port = ready[1], int(ready[2])
            eventually(lambda: call(port, "GET", "/healthz").status == 200, lambda: "version 3 to serve")
            store.publish(4)
            body = {"examples": [{"x": [1.0, 2.0]}], "signature_name": "regress"}

            def served() -> str:
                return call(port, "POST", "/v1/models/m:regress", body).headers["Paramsync-Version"]

            eventually(lambda: served() == "4", lambda: "version 4 to serve")
            done = subprocess.run(
                [sys.executable, "-m", "tests.support.stock_serving", address, str(path)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE,
            )
            assert (done.returncode, done.stdout) == (0, "every call was answered\n"), done.stderr
            assert served() == "3"  # as its configuration said
            labelled = call(port, "POST", "/v1/models/m/labels/stable:regress", body)
            assert labelled.json["results"] == [9.0]
            assert server.stop() == 0
