"""What a shell completes: the script for bash in a real bash, and that those for zsh and fish leave nothing out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paramsync.cli.__main__ import main
from paramsync.cli.arguments import parser
from paramsync.cli.completion import Command, read

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_paramsync
printf "%s\\n" "${COMPREPLY[@]}"
"""
TREE = read(parser())


@pytest.fixture
def bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script for bash."""
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)
    return script


def completed(script: Path, line: str) -> set[str]:
    """What a bash makes of the last word of a line; "=" is a word of its own, as it is for a bash."""
    words = line.replace("=", " = ").split(" ")
    command = ["bash", "--norc", "-c", COMPLETE, "bash", str(script), *words]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split("\n")) - {""}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("paramsync st", {"status"}),
        ("paramsync un", {"unpin", "unlabel"}),
        ("paramsync status --w", {"--watch"}),
        ("paramsync status --server 10.0.0.1:8502 --js", {"--json"}),
        ("paramsync sync digits --f", {"--fresh"}),
        ("paramsync graph s", {"show"}),
        ("paramsync graph show --j", {"--json"}),
        ("paramsync completion z", {"zsh"}),
        ("paramsync status --server ", set()),
        ("paramsync status --server=", set()),
        ("paramsync verify ./comp", {"./completion.bash"}),
        ("paramsync graph show comp", {"completion.bash"}),
        ("paramsync serve --config comp", {"completion.bash"}),
    ],
)
def test_bash_completes(bash: Path, line: str, found: set[str]) -> None:
    assert completed(bash, line) == found


def test_a_shell_completes_the_names_of_models(
    bash: Path, inferencer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PARAMSYNC_SERVER", inferencer)
    assert main(["completion", "models"]) == 0
    served = {*capsys.readouterr().out.split()}
    assert "digits" in served
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for command in ("pin", "status", "predict"):
        assert completed(bash, f"paramsync {command} ") == served
    assert completed(bash, "paramsync sync d") == {name for name in served if name.startswith("d")}
    monkeypatch.setenv("PARAMSYNC_SERVER", "127.0.0.1:1")  # where nobody listens
    assert completed(bash, "paramsync pin ") == set()


def test_bash_completes_all_commands_and_all_options_of_each(bash: Path) -> None:
    for command in TREE.every():
        line = " ".join(["paramsync", *command.words])
        names = {name for option in command.options for name in option.names if name.startswith("--")}
        assert completed(bash, f"{line} --") == names
        if command.commands:
            assert completed(bash, f"{line} ") >= {below.words[-1] for below in command.commands}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_no_command_and_no_option_is_left_out(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in TREE.every():
        assert all(word in script for word in command.words)
        for option in command.options:
            assert all(name.lstrip("-") in script for name in option.names)


def test_the_tree_is_what_the_parser_takes() -> None:
    def every(command: Command) -> set[tuple[str, ...]]:
        return {below.words for below in command.every()}

    assert {("status",), ("graph", "show"), ("completion",)} <= every(TREE)
    (status,) = (command for command in TREE.commands if command.words == ("status",))
    names = {name for option in status.options for name in option.names}
    assert {"--server", "--json", "--watch", "--help"} <= names
    assert "--inferencer" not in names  # its older name, which help does not show
