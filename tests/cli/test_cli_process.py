"""Commands as processes: what starting one costs, Ctrl-C, closed or full streams, completion, and `open`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from paramsync.cli.__main__ import main
from paramsync.v1 import sync_pb2 as pb
from paramsync.v1 import sync_pb2_grpc
from tests.support.certificates import Authority
from tests.support.commands import only_line
from tests.support.programs import PATIENCE, bounded
from tests.support.servers import NEVER, Sync, add_models, serving


def test_no_module_of_the_commands_imports_tensorflow_or_the_programs() -> None:
    code = """
import importlib, pkgutil, sys
import paramsync.cli, paramsync.rpc.client, paramsync.rpc.tensor_proto
for found in pkgutil.iter_modules(paramsync.cli.__path__):
    importlib.import_module(f"paramsync.cli.{found.name}")
unwanted = {"tensorflow", "keras", "trainer", "inferencer"} & set(sys.modules)
assert not unwanted, unwanted
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("module", "option", "start"),
    [
        ("paramsync.cli.__main__", "--help", "usage: paramsync"),
        ("paramsync.cli.__main__", "--version", "paramsync "),
        ("trainer.__main__", "--help", "usage: paramsync train"),
        ("inferencer.program.main", "--help", "usage: paramsync serve"),
    ],
)
def test_help_imports_nothing_that_takes_time(module: str, option: str, start: str) -> None:
    code = f"""
import sys
from {module} import main
try:
    main(["{option}"])
finally:
    slow = {{"grpc", "google.protobuf", "numpy", "rich", "asyncio"}} & set(sys.modules)
    assert not slow, slow
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(start)


@pytest.mark.parametrize(
    ("command", "slow"),
    [
        ("status --trainer NOBODY", {"numpy", "rich.live", "rich.progress"}),
        ("status --trainer NOBODY --json", {"numpy", "rich"}),
        ("sync digits", {"numpy", "rich", "json", "paramsync.rpc.tokens"}),
        ("pin digits 420", {"numpy", "rich"}),
    ],
    ids=["status", "status as JSON", "sync", "pin"],
)
def test_a_command_imports_no_more_than_it_shows(command: str, slow: set[str], inferencer: str, nobody: str) -> None:
    code = """
import sys
from paramsync.cli.__main__ import main
assert main(sys.argv[2:]) == 0
imported = set(sys.argv[1].split(",")) & set(sys.modules)
assert not imported, imported
"""
    arguments = [*command.replace("NOBODY", nobody).split(), "--server", inferencer]
    subprocess.run([sys.executable, "-c", code, ",".join(slow), *arguments], check=True, capture_output=True)


def test_a_command_writes_all_it_says_and_ends_without_being_taken_apart(nobody: str) -> None:
    code = """
import atexit, sys
from paramsync.cli.__main__ import command
atexit.register(print, "taken apart")
command()
"""
    answered = subprocess.run(
        [sys.executable, "-c", code, "completion", "bash"], check=False, capture_output=True, text=True
    )
    assert (answered.returncode, answered.stderr) == (0, "")
    assert answered.stdout.rstrip().splitlines()[-1].startswith("complete ")
    words = [sys.executable, "-c", code, "sync", "--server", nobody]
    failed = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("paramsync sync: inferencer not reachable")


def test_letters_that_the_locale_lacks_are_no_reason_to_fail(nobody: str) -> None:
    with serving(add_models(pb.ModelStatus(model="模型"))) as address:
        command = [sys.executable, "-m", "paramsync.cli", "status", "--server", address, "--trainer", nobody]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        done = subprocess.run(command, check=False, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"??" in done.stdout


def test_ctrl_c_ends_a_command_quietly() -> None:
    servicer = Sync()

    def add(server: grpc.Server) -> None:
        sync_pb2_grpc.add_SyncServicer_to_server(servicer, server)

    with serving(add) as address:
        command = [sys.executable, "-m", "paramsync.cli", "sync", "--version", str(NEVER), "--inferencer", address]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        with bounded(process):
            assert servicer.restoring.wait(PATIENCE)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate()
    assert (process.returncode, said) == (130, "")


@pytest.mark.parametrize("command", ["status --watch --trainer NOBODY", "watch", "top"])
def test_a_command_that_goes_on_ends_when_its_reader_leaves(command: str, inferencer: str, nobody: str) -> None:
    words = [sys.executable, "-m", "paramsync.cli", *command.replace("NOBODY", nobody).split(), "--server", inferencer]
    with bounded(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 1


@pytest.mark.parametrize("command", ["status", "status --json"])
def test_output_that_cannot_be_written_is_one_line(command: str, inferencer: str) -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "paramsync.cli", *command.split(), "--server", inferencer]
        done = subprocess.run(words, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "paramsync: standard output: No space left on device\n")


@pytest.mark.parametrize("redirections", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_matter(redirections: str, inferencer: str) -> None:
    command = [sys.executable, "-m", "paramsync.cli", "sync", "digits", "--inferencer", inferencer]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirections}', "sh", *command], check=False, stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_within_an_import_is_quiet() -> None:
    code = "import signal; from paramsync.cli.process import importing\nwith importing(): signal.raise_signal(2)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


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


def browser(monkeypatch: pytest.MonkeyPatch, command: Path) -> None:
    monkeypatch.setattr("webbrowser._tryorder", None)  # what was found before
    monkeypatch.setattr("webbrowser._browsers", {})
    monkeypatch.setenv("BROWSER", f"{command} %s")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("DISPLAY", raising=False)


def test_the_page_is_opened_and_its_address_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, opened = tmp_path / "browser", tmp_path / "opened"
    command.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    command.chmod(0o755)
    browser(monkeypatch, command)
    assert main(["open"]) == 0
    assert opened.read_text() == capsys.readouterr().out == "http://127.0.0.1:8501/\n"
    words = ["open", "--http", "there:9", "--tls-ca", str(Authority(tmp_path).file)]
    assert main(words) == 0
    assert opened.read_text() == capsys.readouterr().out == "https://there:9/\n"
    browser(monkeypatch, tmp_path / "none")
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == "https://there:9/\n"
    assert "no browser" in only_line(err)


@pytest.mark.parametrize("address", ["", "host:name", "[::1", "host"])
def test_a_wrong_address_is_one_line(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["open", "--http", address]) == 2
    out, err = capsys.readouterr()
    assert (out, only_line(err)[:16]) == ("", "paramsync open: ")
