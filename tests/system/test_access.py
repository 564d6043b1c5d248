"""A real inferencer that has tokens, its workers among it: what its operator, its callers and its log see of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def file(place: Path) -> Path:
    file = place / "tokens"
    file.touch(0o600)
    file.write_text(f"ops:{SECRET}\n")
    return file


@pytest.fixture(scope="module")
def inferencer(place: Path, file: Path) -> Iterator[Process]:
    """Of model `m` in versions 7 and 8, whose trainer takes the same tokens and does not train yet."""
    publisher = Publisher(place / "m")
    access = Access(host="127.0.0.1", tokens=Tokens("--token-file", file))
    with closing(ControlPort("127.0.0.1", 0, store=publisher.path, access=access)) as trainer:
        arguments = ["--model", f"m={publisher.path}", "--resident", "3", "--workers", "2", "--rest-port", "0"]
        program = Process(*arguments, "--token-file", str(file), "--trainer", trainer.address)
        try:
            program.connect()
            for number in (7, 8):
                publisher.publish(number)
                done = command("sync", "m", program.control_address, file)
                assert done.returncode == 0, done.stderr
            yield program
        finally:
            program.close()
            publisher.close()


class Log:
    """The changes that an inferencer tells of, its workers' among them."""

    def __init__(self, inferencer: Process) -> None:
        self._inferencer = inferencer

    def lines(self) -> list[str]:
        return [line for line in self._inferencer.lines if "paramsync.audit" in line]

    def has(self, *words: str) -> None:
        """A line with all of these, and none with a token."""
        eventually(lambda: any(all(word in line for word in words) for line in self.lines()), lambda: repr(words))
        assert not any(SECRET in line for line in self._inferencer.lines)


def command(name: str, of: str, address: str, file: Path | None, *more: str) -> subprocess.CompletedProcess[str]:
    shown = [] if file is None else ["--token-file", str(file)]
    arguments = [sys.executable, "-m", "paramsync.cli", name, of, *more, "--inferencer", address, *shown]
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=LONG)


def test_the_operator_changes_something_with_the_token_and_reads_without(
    inferencer: Process, file: Path, place: Path
) -> None:
    done = command("pin", "m", inferencer.control_address, None, "7")
    expected = "paramsync pin: paramsync.v1.Sync/Pin: expected a token that is known here, found none: paramsync sends"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(expected)
    assert done.stderr.count("\n") == 1
    wrong = place / "wrong"
    wrong.touch(0o600)
    wrong.write_text(SECRET[:-1])
    assert "found another one" in command("pin", "m", inferencer.control_address, wrong, "7").stderr
    assert command("pin", "m", inferencer.control_address, file, "7").stdout.startswith("m: pinned to version 7")
    assert command("unpin", "m", inferencer.control_address, file).returncode == 0
    assert command("status", "m", inferencer.control_address, None, "--trainer", "127.0.0.1:1").returncode == 0
    assert inferencer.predict(of_witness(), timeout=LONG).model_spec.version.value == 8
    log = Log(inferencer)
    log.has("Sync/Pin", "version: 7", "who='ops'", "outcome='done'")
    log.has("Sync/Pin", "outcome='refused'", "found another one")
    wrong.chmod(0o644)
    done = command("pin", "m", inferencer.control_address, wrong, "7")
    assert (done.returncode, "expected mode 0600, found 0644" in done.stderr) == (2, True)


def test_a_fresh_sync_shows_the_token_to_the_trainer(inferencer: Process, file: Path) -> None:
    """Which does not train yet: it says so to who may ask, and to nobody else."""
    done = command("sync", "m", inferencer.control_address, file, "--fresh")
    assert "did not publish: training has not begun yet" in done.stderr
