"""A real inferencer that has tokens, its workers among it: what its operator and its log see of them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from paramsync.publishing.control_port import ControlPort
from paramsync.rpc.access import Access
from paramsync.rpc.tokens import Tokens
from tests.support.inferencers import LONG, Process, of_witness
from tests.support.programs import eventually
from tests.support.published import Publisher

pytestmark = pytest.mark.slow

SECRET = "5ecret-of-the-operators"


def token_file(file: Path, content: str) -> Path:
    file.touch(0o600)
    file.write_text(content)
    return file


def test_an_operator_changes_something_with_the_token_and_reads_without(tmp_path: Path, publisher: Publisher) -> None:
    right, wrong = token_file(tmp_path / "right", f"ops:{SECRET}\n"), token_file(tmp_path / "wrong", SECRET[:-1])
    for number in (7, 8):
        publisher.publish(number)
    access = Access(host="127.0.0.1", tokens=Tokens("--token-file", right))
    with closing(ControlPort("127.0.0.1", 0, store=publisher.path, access=access)) as trainer:  # which does not train
        options = ("--workers", "2", "--rest-port", "0", "--token-file", right, "--trainer", trainer.address)
        program = Process("--model", f"m={publisher.path}", *options)
        program.connect()

        def command(*arguments: str, token: Path | None = None) -> subprocess.CompletedProcess[str]:
            shown = () if token is None else ("--token-file", str(token))
            command = [sys.executable, "-m", "paramsync.cli", *arguments, "--server", program.control_address, *shown]
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)

        def is_logged(*words: str) -> bool:
            lines = [line for line in program.lines if "paramsync.audit" in line]
            return any(all(word in line for word in words) for line in lines)

        assert command("sync", "m", token=right).returncode == 0
        refused = command("pin", "m", "7")
        said = "paramsync pin: paramsync.v1.Sync/Pin: expected a token that is known here, found none: paramsync sends"
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
        assert refused.stderr.startswith(said)
        assert "found another one" in command("pin", "m", "7", token=wrong).stderr
        assert command("pin", "m", "7", token=right).stdout.startswith("m: pinned to version 7")
        assert program.predict(of_witness(), timeout=LONG).model_spec.version.value == 7
        assert command("unpin", "m", token=right).returncode == 0
        assert command("status", "m").returncode == 0
        fresh = command("sync", "m", "--fresh", token=right)
        assert "did not publish: training has not begun yet" in fresh.stderr  # the trainer takes the token, too
        eventually(lambda: is_logged("Sync/Pin", "version: 7", "who='ops'", "outcome='done'"), lambda: "the pin")
        eventually(lambda: is_logged("Sync/Pin", "outcome='refused'", "found another one"), lambda: "the refusal")
        assert not any(SECRET in line for line in program.lines)
        wrong.chmod(0o644)
        readable = command("pin", "m", "7", token=wrong)
        assert (readable.returncode, "expected mode 0600, found 0644" in readable.stderr) == (2, True)
        program.close()
