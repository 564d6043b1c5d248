"""The operator's commands as processes: what starting one costs, Ctrl-C, and streams that are closed or full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from paramsync.v1 import sync_pb2 as pb
from paramsync.v1 import sync_pb2_grpc
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
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert servicer.restoring.wait(30)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "")


@pytest.mark.parametrize("command", ["status --watch --trainer NOBODY", "watch", "top"])
def test_a_command_that_goes_on_ends_when_its_reader_leaves(command: str, inferencer: str, nobody: str) -> None:
    words = [sys.executable, "-m", "paramsync.cli", *command.replace("NOBODY", nobody).split(), "--server", inferencer]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


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
