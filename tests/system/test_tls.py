"""A real inferencer whose ports, its workers' among them, speak TLS both ways, as the commands call it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from paramsync.publishing.control_port import ControlPort
from paramsync.rpc.access import Access
from paramsync.rpc.tls import ServerTls, TlsFiles
from tests.support.certificates import Authority
from tests.support.inferencers import LONG, Process
from tests.support.programs import ROOT, eventually
from tests.support.published import Publisher

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def inferencer(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Process]:
    """Of model `m` in version 7, whose trainer speaks TLS too and does not train yet."""
    publisher, files = Publisher(tmp_path_factory.mktemp("tls") / "m"), authority.sign("inferencer")
    publisher.publish(7)
    tls = ServerTls(TlsFiles(files.certificate, files.key, authority.file))
    access = Access(host="127.0.0.1", certificates=True)
    with closing(ControlPort("127.0.0.1", 0, store=publisher.path, access=access, tls=tls)) as trainer:
        given = ("--tls-cert", files.certificate, "--tls-key", files.key, "--tls-client-ca", authority.file)
        calls = ("--trainer", trainer.address, "--trainer-tls-ca", authority.file)
        model = ("--model", f"m={publisher.path}", "--workers", "1", "--rest-port", "0")
        program = Process(*model, *given, *calls)
        try:
            program.connect()
            yield program
        finally:
            program.close()
            publisher.close()


def command(authority: Authority, *arguments: str, name: str = "ops") -> subprocess.CompletedProcess[str]:
    files = authority.sign(name, names=())
    shown = {
        "PARAMSYNC_TLS_CA": str(authority.file),
        "PARAMSYNC_TLS_CERT": str(files.certificate),
        "PARAMSYNC_TLS_KEY": str(files.key),
    }
    run = [sys.executable, *arguments]
    return subprocess.run(
        run, capture_output=True, text=True, check=False, timeout=LONG, cwd=ROOT, env={**os.environ, **shown}
    )


def test_the_commands_work_by_tls_and_the_log_names_the_certificate(inferencer: Process, authority: Authority) -> None:
    cli, at = ("-m", "paramsync.cli"), ("--inferencer", inferencer.control_address)
    synced = command(authority, *cli, "sync", "m", *at)
    assert synced.stdout.startswith("m: version 7"), synced.stderr
    status = command(authority, *cli, "status", "m", "--json", *at, "--trainer", "127.0.0.1:1")
    assert (status.returncode, '"number": 7' in status.stdout) == (0, True), status.stderr
    asked = ("predict", "m", "--input", "x=[[1.0, 1.0]]", "--server", inferencer.address)
    assert "version 7 answered" in command(authority, *cli, *asked).stdout
    pinned = command(authority, *cli, "pin", "m", "7", *at, name="alice")
    assert pinned.stdout.startswith("m: pinned to version 7"), pinned.stderr
    fresh = command(authority, *cli, "sync", "m", "--fresh", *at)
    assert "did not publish: training has not begun yet" in fresh.stderr
    eventually(lambda: any("Sync/Pin" in line and "who='alice'" in line for line in inferencer.lines), lambda: "a line")


def test_who_shows_no_certificate_is_told_on_one_line(inferencer: Process, authority: Authority) -> None:
    cli = [sys.executable, "-m", "paramsync.cli", "pin", "m", "7", "--inferencer", inferencer.control_address]
    for shown, expected in (
        ([], "it speaks TLS: name who signed its certificate with --tls-ca FILE"),
        (["--tls-ca", str(authority.file)], "it wants a certificate of its callers: show one with --tls-cert FILE"),
    ):
        done = subprocess.run([*cli, *shown], capture_output=True, text=True, check=False, timeout=LONG)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert f"paramsync pin: inferencer at {inferencer.control_address}: {expected}" in done.stderr
