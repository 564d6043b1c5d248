"""Buckets that cannot be used: one line says what is wrong and what to do, nothing is lost, and no secret shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

from paramsync import Publisher, Replica
from paramsync.cli.__main__ import main
from paramsync.errors import ParamsyncError, RemoteError
from paramsync.remote import child, copy_note
from paramsync.remote.bucket import Bucket
from paramsync.remote.child import MirrorChild
from paramsync.remote.mirror import Mirror
from paramsync.remote.protocol import Delete
from paramsync.store.store import Store
from tests.support import buckets, gcs
from tests.support.commands import only_line, three_versions
from tests.support.http_servers import HttpServer
from tests.support.object_stores import SERVERS, ObjectStore
from tests.support.programs import ROOT, Program, eventually, refused
from tests.support.published import Witness

pytestmark = pytest.mark.slow

NOBODY = "http://127.0.0.1:9"  # the port of a service that nobody has
VARIABLES = ("AWS_", "AZURE", "GOOGLE_", "GCE_", "IDENTITY_")


def set_only(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    """Set these variables, and no others that object stores read."""
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_versions(tmp_path_factory.mktemp("source") / "m")


@pytest.fixture
def moto(server: Callable[[str], ObjectStore], monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    found = server("moto")
    set_only(monkeypatch, found.environments[0])
    return found


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line that a command writes to the standard error, without its name."""

    def run(*arguments: str | Path, code: int = 1) -> str:
        assert main([str(argument) for argument in arguments]) == code
        output = capsys.readouterr()
        assert output.out == ""
        line = only_line(output.err)
        return line.removeprefix(f"paramsync {arguments[0]}: ")

    return run


# addresses -----------------------------------------------------------------------------------------------------------

NO_ADDRESS = "expected an address such as s3://bucket/models/digits, found"
MORE = "bucket/folder, without a query, fragment or password: credentials come from the environment"
PARTS = "expected s3://bucket/folder without empty parts, . and .., found"

ADDRESSES = {
    "s3://": f"{NO_ADDRESS} 's3://'",
    "s3:///m": f"{NO_ADDRESS} 's3:///m'",
    "ftp://b/m": f"{NO_ADDRESS} 'ftp://b/m'",
    "https://k:SECRET@host/m": f"{NO_ADDRESS} 'https://host/m'",
    "s3://k:SECRET@b/m": f"expected s3://{MORE}",
    "gs://b/m?key=SECRET": f"expected gs://{MORE}",
    "az://b/m#f": f"expected az://{MORE}",
    "s3://b/../m": f"{PARTS} 's3://b/../m'",
    "s3://b//m": f"{PARTS} 's3://b//m'",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_leads_to_no_folder_is_refused(
    address: str, source: Path, tmp_path: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_only(monkeypatch, {})
    why = ADDRESSES[address]
    assert said("mirror", source, address, code=2) == why
    assert said("mirror", address, tmp_path / "target", code=2) == why
    with pytest.raises(ParamsyncError, match=f"^{re.escape(why)}$"):
        Publisher(address, Witness())
    if address.startswith(("s3:", "gs:", "az:")):
        assert said("pin", address, "3", code=2) == why
        with pytest.raises(ParamsyncError, match=f"^{re.escape(why)}$"):
            Replica("m", address)
    assert [*tmp_path.iterdir()] == []


def test_programs_refuse_such_an_address(tmp_path: Path) -> None:
    address = "s3://k:SECRET@b/m"
    assert ADDRESSES[address] in refused("paramsync.cli", "serve", "--model", f"m={address}")
    assert ADDRESSES[address] in refused("paramsync.cli", "train", "--store", address, "--state", tmp_path / "state")
    assert ADDRESSES["ftp://b/m"] in refused("paramsync.cli", "serve", "--model", "m=ftp://b/m")


def test_without_obstore_the_package_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "obstore.py").write_text("raise ImportError('No module named obstore')")
    command = [sys.executable, "-m", "paramsync.cli", "mirror", str(source), "s3://b/m"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.search(r"^paramsync mirror: s3://b/m: needs the package obstore: pip install .*\[bucket\]", done.stderr)
    only_line(done.stderr)


# servers and credentials ---------------------------------------------------------------------------------------------


@contextmanager
def answering(status: int, content: str, headers: Mapping[str, str]) -> Iterator[str]:
    """A server that gives one answer, as recorded from Amazon's; yields its endpoint."""

    class Requests(BaseHTTPRequestHandler):
        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Only what clients make of the answers matters."""

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content.encode())

        do_PUT = do_POST = do_DELETE = do_GET

    with HttpServer(Requests) as server:
        yield server.endpoint


@dataclass(frozen=True)
class Recorded:
    status: int
    code: str
    message: str
    why: str
    headers: tuple[tuple[str, str], ...] = ()


ANSWERS = {
    "another region": Recorded(
        301, "PermanentRedirect", "The bucket must be addressed using the specified endpoint.",
        "the bucket is in another region: set AWS_REGION to it", (("x-amz-bucket-region", "eu-west-1"),),
    ),
    "another region named": Recorded(
        400, "AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong; expecting 'eu-west-1'",
        "the bucket is in another region: set AWS_REGION=eu-west-1",
    ),
    "wrong secret": Recorded(
        403, "SignatureDoesNotMatch", "The request signature we calculated does not match.",
        "access is denied: SignatureDoesNotMatch: The request signature we calculated does not match: check"
        " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    "expired": Recorded(
        400, "ExpiredToken", "The provided token has expired.",
        "access is denied: ExpiredToken: The provided token has expired: check AWS_ACCESS_KEY_ID and"
        " AWS_SECRET_ACCESS_KEY",
    ),
    "clock": Recorded(
        403, "RequestTimeTooSkewed", "The difference between the times is too large.",
        "access is denied: the clock of this machine is wrong",
    ),
    "no such bucket": Recorded(
        404, "NoSuchBucket", "The specified bucket does not exist",
        "there is no such bucket: create it, or correct the address or the region",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_a_refusal_of_the_server_says_what_to_do(
    name: str, source: Path, tmp_path: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ANSWERS[name]
    content = f'<?xml version="1.0"?>\n<Error><Code>{answer.code}</Code><Message>{answer.message}</Message></Error>'
    with answering(answer.status, content, dict(answer.headers)) as endpoint:
        set_only(monkeypatch, buckets.environment(endpoint))
        for arguments in (("mirror", source, "s3://b/m"), ("mirror", "s3://b/m", tmp_path / "target")):
            assert said(*arguments, "--once") == f"s3://b/m: {answer.why}"


def test_a_deletion_that_is_denied_in_the_answer_to_many_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = "<Error><Key>m/data/1/a</Key><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    with answering(200, f"<DeleteResult>{denied}</DeleteResult>", {}) as endpoint:
        set_only(monkeypatch, buckets.environment(endpoint))
        with pytest.raises(ParamsyncError, match="may not delete objects there: give them the right"):
            Bucket("s3://b/m").answer(Delete("data/1/a"))


NO_MACHINE = dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"), "127.0.0.1:9")

UNSET = {
    "s3": ("s3://b/m", {"AWS_METADATA_ENDPOINT": NOBODY}, 1,
           "s3://b/m: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"),
    "gs": ("gs://b/m", NO_MACHINE,
           1, "gs://b/m: no credentials: set GOOGLE_APPLICATION_CREDENTIALS, or give this machine a role"),
    "az": ("az://b/m", {}, 2, "az://b/m: set AZURE_STORAGE_ACCOUNT_NAME"),
    "file": ("gs://b/m", {"GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent"}, 2,
             "gs://b/m: Unable to open service account file from /nonexistent: No such file or directory (os error 2)"),
    "http": ("s3://b/m", {**buckets.environment(NOBODY), "AWS_ALLOW_HTTP": "false"}, 1,
             "s3://b/m: an http:// endpoint needs AWS_ALLOW_HTTP=true"),
    "endpoint": ("s3://b/m", buckets.environment("localhost:8333"), 2,
                 "AWS_ENDPOINT_URL: expected a URL such as https://host:port"),
    "nobody": ("s3://b/m", buckets.environment(NOBODY), 1, f"s3://b/m: no answer from {NOBODY}"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSET)
def test_an_environment_that_cannot_work_names_the_variable(
    name: str, source: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, environment, code, why = UNSET[name]
    set_only(monkeypatch, environment)
    assert said("mirror", source, address, "--once", code=code) == why


def post(endpoint: str, service: str, **fields: str) -> str:
    """Call an operation of Amazon's query interface, of which obstore knows none."""
    headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/{service}/aws4_request"}
    request = urllib.request.Request(endpoint, urllib.parse.urlencode(fields).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        content: bytes = answer.read()
    return content.decode()


@pytest.mark.parametrize(
    ("allowed", "why"),
    [
        (["s3:GetObject", "s3:ListBucket", "s3:DeleteObject"], "these credentials may not write objects there: give"),
        (["s3:PutObject", "s3:DeleteObject"], "these credentials may not read or list objects there: give"),
    ],
)
def test_a_right_that_is_missing_is_named(
    allowed: list[str],
    why: str,
    source: Path,
    tmp_path: Path,
    said: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with SERVERS["moto"](tmp_path) as server:
        endpoint = server.environments[0]["AWS_ENDPOINT_URL"]
        user = {"UserName": "u", "Version": "2010-05-08"}
        post(endpoint, "iam", Action="CreateUser", **user)
        made = post(endpoint, "iam", Action="CreateAccessKey", **user)
        policy = {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Action": allowed, "Resource": "*"}],
        }
        post(endpoint, "iam", Action="PutUserPolicy", PolicyName="p", PolicyDocument=json.dumps(policy), **user)
        checks = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        urllib.request.urlopen(checks).close()
        [key], [secret] = (re.findall(f"<{name}>(.*?)<", made) for name in ("AccessKeyId", "SecretAccessKey"))
        keys = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        set_only(monkeypatch, {**server.environments[0], **keys})
        assert said("mirror", source, f"{server.address}/m", "--once").startswith(
            f"{server.address}/m: access is denied: {why}"
        )


def test_versions_come_without_the_right_to_delete_which_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with gcs.Gcs() as server:
        server.denied = {"DELETE"}
        set_only(monkeypatch, server.environment)
        with Program("paramsync.cli", "mirror", source, "gs://paramsync/m", log=tmp_path / "log") as program:
            program.said("version 30: ")
            program.said("may not delete objects there: give them the right\n")
            assert program.stop() == 0
            assert len(program.text.splitlines()) == 2


# what lies in the bucket ---------------------------------------------------------------------------------------------

STATES = {
    "html": (b"<html>sign in</html>", "found no JSON, of somebody else: use another folder"),
    "json": (b'{"a": 1}', "found other JSON, of somebody else: use another folder"),
    "empty": (b"", "found an empty object, of somebody else: use another folder"),
    "large": (b" " * (8 << 20), "found 8388608 bytes, of somebody else: use another folder"),
    "newer": (b'{"format": 2}', "expected format 1, found format 2, of a newer paramsync: upgrade this one"),
}


@pytest.mark.parametrize("name", STATES)
def test_the_state_of_somebody_else_is_refused_and_stays(
    name: str, moto: ObjectStore, folder: str, source: Path, tmp_path: Path, said: Callable[..., str]
) -> None:
    content, why = STATES[name]
    address = f"{moto.address}/{folder}"
    obstore.put(from_url(address), "state.json", content)
    for arguments in (
        ("mirror", source, address, "--once"),
        ("mirror", address, tmp_path / "target", "--once"),
        ("pin", address, "30"),
    ):
        line = said(*arguments)
        assert line.startswith(f"{address}: state.json: expected ")
        assert line.endswith(why)
    assert bytes(obstore.get(from_url(address), "state.json").bytes()) == content
    assert [*Bucket(address).objects()] == ["state.json"]


def test_files_of_somebody_else_are_left_alone(
    moto: ObjectStore, folder: str, source: Path, said: Callable[..., str]
) -> None:
    address = f"{moto.address}/{folder}"
    obstore.put(from_url(address), "photos/1.jpg", b"x")
    line = said("mirror", source, address, "--once")
    assert line == (
        f"{address}: expected an empty folder, found 'photos/1.jpg', which is somebody else's: publish to a folder of"
        " its own"
    )
    assert [*Bucket(address).objects()] == ["photos/1.jpg"]


def test_a_folder_to_which_nobody_published_is_no_error_of_the_state(
    moto: ObjectStore, folder: str, tmp_path: Path, said: Callable[..., str]
) -> None:
    address = f"{moto.address}/{folder}"
    assert said("mirror", address, tmp_path / "target", "--once") == f"nothing is published in {address}"
    assert said("pin", address, "30") == f"nothing is published in {address}"


def test_a_publisher_to_a_folder_it_may_not_use_says_so_once(
    moto: ObjectStore,
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(child, "_MEMORY", tmp_path)
    address = f"{moto.address}/{folder}"
    obstore.put(from_url(address), "state.json", b"{}")
    with pytest.raises(ParamsyncError, match=f"^{address}: state.json: expected the state of a publisher"):
        Publisher(address, Witness())
    assert [*tmp_path.iterdir()] == []
    assert caplog.text == ""
    assert "paramsync" not in capfd.readouterr().err  # TensorFlow may say that it finds no GPU


def test_training_that_cannot_publish_to_its_bucket_does_not_begin(moto: ObjectStore, tmp_path: Path) -> None:
    said = refused("paramsync.cli", "train", "--store", "s3://nothing/m", "--state", tmp_path, "--control-port", "0")
    assert said == (
        "paramsync train: s3://nothing/m: there is no such bucket: create it, or correct the address or the region\n"
    )


# followers and their copies ------------------------------------------------------------------------------------------


@pytest.fixture
def address(moto: ObjectStore, folder: str, source: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """An address with version 30."""
    found = f"{moto.address}/{folder}"
    assert main(["mirror", str(source), found, "--once"]) == 0
    capsys.readouterr()
    return found


def latest(store: Path) -> int | None:
    version = Store(store).latest()
    return None if version is None else version.number


def test_a_copy_goes_where_there_is_room_and_leave_to_write(
    address: str, tmp_path: Path, said: Callable[..., str]
) -> None:
    file, closed, small = tmp_path / "file", tmp_path / "closed", tmp_path / "small"
    file.write_text("")
    closed.mkdir(mode=0o555)
    small.mkdir()
    assert said("mirror", address, file, "--once") == f"store {file}: expected a directory, found a file"
    line = refused("paramsync.cli", "serve", "--model", f"m={address}", "--cache", closed / "cache")
    assert re.fullmatch(f"paramsync serve: {closed}/cache/[0-9a-f]+: cannot be made: Permission denied\n", line)
    command = f"{sys.executable} -m paramsync.cli mirror {address} {small}/m --once"
    inside = f"mount -t tmpfs -o size=16k none {small} && exec {command}"
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside]
    done = subprocess.run(alone, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    assert re.fullmatch(f"paramsync mirror: store {small}/m: .* No space left on device\n", done.stderr)


def test_a_copy_may_be_on_another_file_system_than_temporary_files(
    address: str, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mirror", address, str(memory / "m"), "--once"]) == 0
    assert latest(memory / "m") == 30


def test_two_mirrors_do_not_share_a_copy(address: str, tmp_path: Path, said: Callable[..., str]) -> None:
    target = tmp_path / "m"
    with Program("paramsync.cli", "mirror", address, target, log=tmp_path / "log") as first:
        first.said("version 30: ")
        line = said("mirror", address, target, "--once")
        owner = r"another mirror copies into it \(process \d+ on .*\)"
        assert re.fullmatch(f"store {target}: {owner}: give each a directory of its own, servers by --cache", line)
        assert first.stop() == 0
    assert latest(target) == 30


def test_a_server_that_shares_a_copy_says_so_once_however_often_its_mirror_starts(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child, "_FIRST_WAIT", 0.0)
    first = MirrorChild(address, str(tmp_path / "m"))
    eventually(lambda: first.status.copied is not None, lambda: first.reason)
    second = MirrorChild(address, str(tmp_path / "m"))
    processes = set()

    def have_started(count: int = 3) -> bool:
        if second._process is not None:
            processes.add(second._process.pid)
        return len(processes) > count

    eventually(have_started, lambda: second.reason)
    for mirror in (second, first):
        mirror.close(0.0)
    assert "give each a directory of its own, servers by --cache" in second.reason
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [second.reason]


def test_a_mirror_between_buckets_follows_no_other_run_after_a_restart(
    address: str, source: Path, said: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    copy = f"s3://{buckets.BUCKET}/copies-of-a-bucket"
    for _ in range(2):
        assert main(["mirror", address, copy, "--once"]) == 0
    before = Bucket(copy).state()
    assert before.run == Bucket(address).state().run
    assert before.newest is not None
    assert before.newest.number == 30
    for name in Bucket(address).objects():
        Bucket(address).answer(Delete(name))
    assert main(["mirror", str(source), address, "--once"]) == 0
    capsys.readouterr()
    expected = f"another training began there: expected versions of run {before.run[:8]}, as in {copy}"
    found = f"found those of run {Bucket(address).state().run[:8]}; empty {copy} to follow these"
    assert said("mirror", address, copy, "--once") == f"{address}: {expected}, {found}"
    assert Bucket(copy).state() == before


HOLDS_A_COPY = """
import sys
from paramsync.remote.bucket import Bucket
from paramsync.remote.excerpt import Excerpt
with Excerpt(Bucket(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_mirror_between_buckets_removes_the_local_copy_of_a_killed_mirror(
    address: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    copy = f"s3://{buckets.BUCKET}/copies-by-killed-mirrors"
    assert main(["mirror", str(source), address, "--once"]) == 0
    with Program("paramsync.cli", "mirror", address, copy, log=tmp_path / "log") as mirror:
        eventually(lambda: [*tmp_path.glob("paramsync-*/checkpoint")], lambda: mirror.text)
        assert main(["mirror", address, copy, "--once"]) == 0
        assert [*tmp_path.glob("paramsync-*/checkpoint")]  # its owner runs
    assert main(["mirror", address, copy, "--once"]) == 0
    assert not [*tmp_path.glob("paramsync-*")]


def test_a_command_of_a_bucket_removes_the_local_copy_of_a_killed_command(
    address: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["mirror", str(source), address, "--once"]) == 0
    command = [sys.executable, "-c", HOLDS_A_COPY, address]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"ready\n"
        killed.kill()
    assert [*tmp_path.glob("paramsync-*")]
    assert main(["verify", address]) == 0
    assert not [*tmp_path.glob("paramsync-*")]


def test_a_mirror_between_buckets_that_runs_on_follows_no_other_run(
    address: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    copy = f"s3://{buckets.BUCKET}/copies-of-a-bucket-that-began-anew"
    assert main(["mirror", str(source), address, "--once"]) == 0
    with Mirror(address, copy) as mirror:
        mirror.run_once()
        before = Bucket(copy).state()
        for name in Bucket(address).objects():
            Bucket(address).answer(Delete(name))
        assert main(["mirror", str(source), address, "--once"]) == 0
        with pytest.raises(RemoteError, match=f"another training began there: .*; empty {copy} and restart"):
            mirror.run_once()
        [note] = tmp_path.glob(f"*/{copy_note.NAME}")
        note.unlink()
        with pytest.raises(RemoteError, match=f"another training began there: .* empty {copy} to follow these"):
            mirror.run_once()
    assert Bucket(copy).state() == before


def test_a_follower_of_an_emptied_bucket_keeps_its_copy_and_follows_no_other_run(
    address: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "m"
    with Program("paramsync.cli", "mirror", address, target, log=tmp_path / "log") as follower:
        follower.said("version 30: ")
        Bucket(address).answer(Delete("state.json"))
        follower.said(f"paramsync mirror: {address}: the state object is gone: somebody emptied the bucket")
        assert main(["mirror", str(source), address, "--once"]) == 0
        follower.said(f"paramsync mirror: {address}: another training began there: .*; remove {target} to follow these")
        assert latest(target) == 30
        assert follower.stop() == 0


# secrets -------------------------------------------------------------------------------------------------------------

SECRET = "SeCrEt"  # in every credential; Azure's keys are base64, as this is

FAILING = {
    "key": ("s3://b/m", {**buckets.environment(NOBODY), "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": SECRET}),
    "endpoint": ("s3://b/m", buckets.environment(f"http://user:{SECRET}@127.0.0.1:9")),
    "no endpoint": ("s3://b/m", buckets.environment(f"user:{SECRET}@127.0.0.1:9")),
    "account": ("az://b/m", {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": f"{SECRET}!"}),
    "signature": ("az://b/m", {
        "AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_SAS_TOKEN": f"sv=2023&sig={SECRET}",
        "AZURE_STORAGE_ENDPOINT": f"{NOBODY}/a", "AZURE_ALLOW_HTTP": "true",
    }),
    "service account": ("gs://b/m", {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({"private_key": SECRET})}),
    "text": ("gs://b/m", {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(SECRET)}),
    "bearer": ("gs://b/m", {"GOOGLE_BEARER_TOKEN": SECRET, "GOOGLE_BASE_URL": NOBODY, **NO_MACHINE}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_no_error_shows_a_secret(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    address, environment = FAILING[name]
    set_only(monkeypatch, environment)
    for arguments in ((source, address), (address, tmp_path / "m")):
        for options in ((), ("--json",)):
            assert main(["mirror", *map(str, arguments), "--once", *options]) in (1, 2)
    shown = "".join(capfd.readouterr())
    assert "paramsync mirror: " in shown
    assert SECRET not in shown
    assert "from ://" not in shown
    note = tmp_path / "m" / "mirror.json"
    assert not note.exists() or SECRET not in note.read_text()


def test_neither_log_nor_status_nor_copy_shows_a_secret(
    moto: ObjectStore,
    folder: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    endpoint = moto.environments[0]["AWS_ENDPOINT_URL"].replace("//", f"//user:{SECRET}@")
    variables = {"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": SECRET, "AWS_ENDPOINT_URL": endpoint}
    set_only(monkeypatch, {**moto.environments[0], **variables})
    address = f"{moto.address}/{folder}"
    assert main(["mirror", str(source), address, "--once", "--json"]) == 0
    assert main(["pin", address, "30", "--json"]) == 0
    cache, log = tmp_path / "cache", tmp_path / "log"
    model = ("--model", f"m={address}", "--model", "none=s3://nothing/m")
    ports = ("--port", "0", "--control-port", "0", "--workers", "1")
    with Program("paramsync.cli", "serve", *model, "--cache", cache, *ports, log=log) as server:
        server.said("no such bucket")
        control = server.said(r"ready: .* control (\S+),")[1]
        assert main(["status", "--server", control, "--json"]) in (0, 1)
        assert main(["status", "--server", control]) in (0, 1)
        commands = [path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert any(address in command for command in commands)
        assert SECRET not in "".join(commands)
        assert server.stop() == 0
    notes = [note.read_text() for note in cache.glob("*/mirror.json")]
    assert len(notes) == 2
    shown = "".join([*capfd.readouterr(), log.read_text(), *notes])
    assert "there is no such bucket" in shown
    assert SECRET not in shown
