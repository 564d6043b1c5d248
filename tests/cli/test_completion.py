"""What a shell completes: the script for bash in a real bash, and that every shell gets one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paramsync.cli.__main__ import main

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_paramsync
printf "%s\\n" "${COMPREPLY[@]}"
"""


def completed(folder: Path, line: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert main(["completion", "bash"]) == 0
    script = folder / "completion.bash"
    script.write_text(capsys.readouterr().out)
    command = ["bash", "--norc", "-c", COMPLETE, "bash", str(script), *line.split(" ")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split("\n")) - {""}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("paramsync un", {"unpin", "unlabel"}),
        ("paramsync status --w", {"--watch"}),
        ("paramsync graph show --j", {"--json"}),
        ("paramsync verify ./comp", {"./completion.bash"}),
        ("paramsync verify s --trust comp", {"completion.bash"}),
        ("paramsync serve --config comp", {"completion.bash"}),
    ],
)
def test_bash_completes(tmp_path: Path, line: str, words: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert completed(tmp_path, line, capsys) == words


def test_a_shell_completes_the_names_of_models(
    tmp_path: Path, inferencer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PARAMSYNC_SERVER", inferencer)
    assert completed(tmp_path, "paramsync pin ", capsys) == {"digits"}
    monkeypatch.setenv("PARAMSYNC_SERVER", "127.0.0.1:1")  # where nobody listens
    assert completed(tmp_path, "paramsync pin ", capsys) == set()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_too(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "fresh" in capsys.readouterr().out
