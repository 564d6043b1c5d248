"""A real inferencer with TLS, tokens or trusted keys, its workers among it, as its operator and its log see it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.publishing.control_port import ControlPort
from paramsync.rpc.access import Access
from paramsync.rpc.tls import ServerTls, TlsFiles
from paramsync.rpc.tokens import Tokens
from paramsync.store.store import Store
from paramsync.v1 import sync_pb2 as pb
from tests.support.certificates import Authority
from tests.support.inferencers import LONG, Process, of_witness
from tests.support.keys import Keys, keys, renumbered
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


@pytest.fixture
def pair(tmp_path: Path) -> Keys:
    return keys(tmp_path)


@pytest.fixture
def program(tmp_path: Path, pair: Keys) -> Iterator[Process]:
    with Process("--model", f"m={tmp_path / 'store'}", "--trust", pair.public, "--workers", "1") as program:
        yield program


def seen(program: Process) -> tuple[set[float], int]:
    """The values that answered, and the version that the answer names."""
    answer = program.predict(of_witness(), timeout=LONG)
    return set(tf.make_ndarray(answer.outputs["seen"]).tolist()), answer.model_spec.version.value


def quarantined(program: Process) -> dict[int, str]:
    [status] = program.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models
    return {one.number: one.reason for one in status.quarantined}


@pytest.mark.promise
def test_forged_versions_are_quarantined_with_the_reason_and_the_next_good_one_serves(
    tmp_path: Path, pair: Keys, program: Process
) -> None:
    path, other = tmp_path / "store", keys(tmp_path, "other")

    def publish(number: int, key: Path | None) -> None:
        publisher = Publisher(path, keep=50, signing_key=key)
        publisher.publish(number)
        publisher.close()

    def is_refused(number: int, reason: str) -> None:
        eventually(lambda: reason in quarantined(program).get(number, "") or None, lambda: str(quarantined(program)))
        assert seen(program) == ({1.0}, 1)

    publish(1, pair.private)
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    assert seen(program) == ({1.0}, 1)
    [status] = program.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models
    assert status.signed_by == pair.id
    publish(2, None)
    is_refused(2, "expected a signature")
    publish(3, other.private)
    is_refused(3, f"expected one signed by a trusted key ({pair.id}), found one of key '{other.id}'")
    renumbered(path, Store(path).find(1), 4)
    is_refused(4, "it was changed, or forged")
    publish(8, pair.private)
    list(program.sync.Sync(pb.SyncRequest(version=8), timeout=LONG))
    assert seen(program) == ({8.0}, 8)
    assert program.process.poll() is None
