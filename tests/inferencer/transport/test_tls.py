"""Every port by TLS, as stock clients and the commands see it: right certificates, exchanged ones, wrong ones."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from paramsync.errors import CallError, NotReachableError, SettingsError
from paramsync.publishing.control_port import ControlPort
from paramsync.rpc.access import Access
from paramsync.rpc.client import Credentials, Inferencer, Predictor, Trainer
from paramsync.rpc.tls import ClientTls, ServerTls, TlsFiles, tls_files
from paramsync.rpc.tokens import Tokens
from tests.support.certificates import Authority, Files
from tests.support.http import small_limits
from tests.support.in_process import InProcess
from tests.support.programs import eventually
from tests.support.published import Publisher
from tests.support.running import LONG, Running, request
from tests.support.servers import add_sync
from trainer.metrics import MetricsPort

SECRET = "5ecret-of-the-operators"
TOKENS = Tokens("PARAMSYNC_TOKEN", None, f"by-token:{SECRET}")
LOAD = ("POST", "/v2/repository/models/m/load")


@dataclass
class Secured:
    """An inferencer and a trainer whose ports speak TLS."""

    running: Running
    trainer: str
    metrics: str
    authority: Authority
    files: Files

    @property
    def addresses(self) -> list[str]:
        ports = (self.running.port, self.running.control_port, self.running.rest_port)
        return [*(f"127.0.0.1:{port}" for port in ports), self.trainer, self.metrics]

    @property
    def tls(self) -> ClientTls:
        return ClientTls(self.authority.file)

    def https(self, method: str, path: str, shown: Files | None = None, **headers: str) -> tuple[int, bytes]:
        context = ssl.create_default_context(cafile=str(self.authority.file))
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        connection = http.client.HTTPSConnection("127.0.0.1", self.running.rest_port, timeout=LONG, context=context)
        with closing(connection):
            connection.request(method, path, b"" if method == "POST" else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path_factory.mktemp("store") / "m")
    publisher.publish(7)
    yield publisher
    publisher.close()


def secured(stack: ExitStack, publisher: Publisher, authority: Authority, **more: Any) -> Secured:
    client_ca = more.pop("client_ca", None)
    files = authority.sign("server")
    tls = TlsFiles(files.certificate, files.key, client_ca)
    running = Running(publisher.path, tls=tls, **more)
    stack.callback(running.close)
    running.server.models.follower("m").sync(timeout=LONG)
    access = Access(host="127.0.0.1", certificates=client_ca is not None)
    control = ControlPort("127.0.0.1", 0, store=publisher.path, access=access, tls=ServerTls(tls))
    stack.callback(control.close)
    metrics = MetricsPort("127.0.0.1", 0, CollectorRegistry(), access=access, tls=ServerTls(tls))
    stack.callback(metrics.close)
    return Secured(running, control.address, metrics.address, authority, files)


@pytest.fixture(scope="module")
def plainly(publisher: Publisher, authority: Authority) -> Iterator[Secured]:
    """Callers need no certificate."""
    with ExitStack() as stack:
        yield secured(stack, publisher, authority)


@pytest.fixture(scope="module")
def mutual(publisher: Publisher, authority: Authority) -> Iterator[Secured]:
    """Callers show one, or a token by HTTP."""
    with ExitStack() as stack:
        yield secured(stack, publisher, authority, client_ca=authority.file, tokens=TOKENS)


def test_a_replica_that_is_called_by_its_address_shows_the_name_that_the_address_came_from(
    authority: Authority,
) -> None:
    files = authority.sign("replica", names=("replicas.svc",))
    server = grpc.server(ThreadPoolExecutor(1))
    add_sync(server)
    shown = grpc.ssl_server_credentials([(files.key.read_bytes(), files.certificate.read_bytes())])
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', shown)}"
    server.start()
    credentials = Credentials(tls=ClientTls(authority.file))
    try:
        with Inferencer(address, credentials, name="replicas.svc") as inferencer:
            assert inferencer.status()
        for name in ("", "others.svc"):
            with Inferencer(address, credentials, name=name) as inferencer, pytest.raises(CallError) as raised:
                inferencer.status()
            assert "call it by a name that stands in its certificate" in str(raised.value)
    finally:
        server.stop(None).wait()


def test_the_commands_and_stock_clients_are_answered(plainly: Secured) -> None:
    tls, running = plainly.tls, plainly.running
    with Inferencer(f"localhost:{running.control_port}", Credentials(tls=tls)) as inferencer:
        assert inferencer.serves()
        assert inferencer.sync("m").serving.number == 7
        assert inferencer.pin("m", 7).pinned == 7
        assert not inferencer.unpin("m").HasField("pinned")
        stream = inferencer.watch("m")
        stream.close()
    with Trainer(plainly.trainer, Credentials(tls=tls)) as trainer:
        assert trainer.status().store.endswith("m")
    with Predictor(f"127.0.0.1:{running.port}", Credentials(tls=tls)) as predictor:
        assert predictor.serves()
    roots = plainly.authority.file.read_bytes()
    with grpc.secure_channel(f"127.0.0.1:{running.port}", grpc.ssl_channel_credentials(roots)) as channel:
        predict: Any = channel.unary_unary("/tensorflow.serving.PredictionService/Predict", None, None)
        assert predict(request().SerializeToString(), timeout=LONG)
    assert plainly.https("GET", "/healthz")[0] == 200
    assert b"paramsync_served_version" in plainly.https("GET", "/metrics")[1]


def test_who_speaks_no_tls_is_not_answered(plainly: Secured) -> None:
    for address in plainly.addresses:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=LONG) as plain:
            answer = b""
            with suppress(OSError):  # the server may end the connection at any moment
                plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
                plain.shutdown(socket.SHUT_WR)
                while more := plain.recv(4096):
                    answer += more
        assert b"HTTP" not in answer
        assert b"x 1" not in answer


def shown(address: str) -> str:
    host, port = address.split(":")
    return ssl.get_server_certificate((host, int(port)), timeout=LONG)


def test_certificates_are_exchanged_without_a_restart(
    publisher: Publisher, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        ports = secured(stack, publisher, authority)
        addresses = ports.addresses
        first = ports.files.certificate.read_text()
        assert {shown(address) for address in addresses} == {first}
        going_on = stack.enter_context(Inferencer(addresses[1], Credentials(tls=ports.tls)))
        assert going_on.status()
        second = authority.sign("second")
        ports.files.replace(second)
        assert {shown(address) for address in addresses} == {second.certificate.read_text()}
        assert ports.https("GET", "/healthz")[0] == 200
        ports.files.certificate.write_text("what is no certificate")
        assert {shown(address) for address in addresses} == {second.certificate.read_text()}
        assert "what was there before is still used" in caplog.text
        ports.files.replace(third := authority.sign("third"))
        assert {shown(address) for address in addresses} == {third.certificate.read_text()}
        assert going_on.status()  # by the connection that it has


def test_a_certificate_of_the_caller_lets_it_change_something_and_names_it(
    mutual: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "paramsync.audit")
    alice = mutual.authority.sign("alice", names=())
    tls = ClientTls(mutual.authority.file, alice.certificate, alice.key)
    address = f"127.0.0.1:{mutual.running.control_port}"
    with Inferencer(address, Credentials(tls=tls)) as inferencer:
        assert inferencer.pin("m", 7).pinned == 7
        inferencer.unpin("m")
    with Trainer(mutual.trainer, Credentials(tls=tls)) as trainer, pytest.raises(CallError, match="has not begun yet"):
        trainer.publish()
    with closing(InProcess(tmp_path / "m", tls=mutual.running.settings.tls, tokens=TOKENS)) as running:
        worker = replace(mutual, running=running)  # a worker's log is in this process
        assert worker.https(*LOAD, alice)[0] == 200
        assert worker.https(*LOAD, Authorization=f"Bearer {SECRET}")[0] == 200
    who = [record.getMessage().partition("who=")[2].split(" from=")[0] for record in caplog.records]
    assert who == ["'alice'", "'alice'", "'alice'", "'alice'", "'by-token'"]


def test_without_a_certificate_gr_pc_is_not_answered_and_http_changes_nothing(mutual: Secured) -> None:
    for client, address in (
        (Inferencer, f"127.0.0.1:{mutual.running.control_port}"),
        (Predictor, f"127.0.0.1:{mutual.running.port}"),
        (Trainer, mutual.trainer),
    ):
        made: Any = client
        with made(address, Credentials(tls=mutual.tls)) as caller, pytest.raises(CallError) as raised:
            caller.serves()
        assert "it wants a certificate of its callers: show one with --tls-cert FILE" in str(raised.value)
    assert mutual.https("GET", "/healthz")[0] == 200
    assert mutual.https("GET", "/v1/models/m")[0] == 200
    status, body = mutual.https(*LOAD)
    assert (status, b"expected a token that is known here, found none" in body) == (401, True)


def test_a_certificate_that_somebody_else_signed_or_that_has_expired_is_not_taken(
    mutual: Secured, tmp_path: Path
) -> None:
    for wrong in (
        Authority(tmp_path).sign("alice"),
        mutual.authority.sign("alice", days=-1),
        mutual.authority.self_signed("alice"),
    ):
        tls = ClientTls(mutual.authority.file, wrong.certificate, wrong.key)
        address = f"127.0.0.1:{mutual.running.control_port}"
        with Inferencer(address, Credentials(tls=tls)) as inferencer, pytest.raises(CallError) as raised:
            inferencer.pin("m", 7)
        assert "does not take the certificate of this command" in str(raised.value)
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            mutual.https(*LOAD, wrong)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_is_resumed_without_the_certificate_of_its_caller(mutual: Secured, newest: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cafile=str(mutual.authority.file))
    context.maximum_version = newest
    alice = mutual.authority.sign("alice")
    context.load_cert_chain(alice.certificate, alice.key)
    session = None
    for _ in range(2):
        plain = socket.create_connection(("127.0.0.1", mutual.running.rest_port), timeout=LONG)
        with context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1) == b"H"
            assert not connection.session_reused
            session = connection.session


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("expired", "its certificate is not taken: certificate has expired; give it a new one"),
        ("self-signed", "its certificate is not taken: self-signed certificate; name who signed it with --tls-ca FILE"),
        ("another authority", "unable to get local issuer certificate; name who signed it with --tls-ca FILE"),
        ("another host", "call it by a name that stands in its certificate"),
    ],
)
def test_a_certificate_that_is_not_taken_is_said_on_one_line(
    wrong: str, expected: str, authority: Authority, tmp_path: Path
) -> None:
    files = {
        "expired": lambda: authority.sign("server", days=-1),
        "self-signed": lambda: authority.self_signed("server"),
        "another authority": lambda: Authority(tmp_path, "another").sign("server"),
        "another host": lambda: authority.sign("server", names=("elsewhere.example",)),
    }[wrong]()
    tls = ServerTls(TlsFiles(files.certificate, files.key))
    with closing(ControlPort("127.0.0.1", 0, store=tmp_path, tls=tls)) as port:
        began = time.monotonic()
        with (
            Trainer(port.address, Credentials(tls=ClientTls(authority.file))) as trainer,
            pytest.raises(CallError) as raised,
        ):
            trainer.status()
        text = str(raised.value)
        assert text.startswith(f"trainer at {port.address}: ")
        assert expected in text
        assert "\n" not in text
        assert time.monotonic() - began < LONG


def test_who_calls_in_plain_or_by_tls_where_it_is_the_other_is_told(plainly: Secured, tmp_path: Path) -> None:
    with Inferencer(f"127.0.0.1:{plainly.running.control_port}") as inferencer, pytest.raises(CallError) as raised:
        inferencer.status()
    assert "it speaks TLS: name who signed its certificate with --tls-ca FILE" in str(raised.value)
    with closing(ControlPort("127.0.0.1", 0, store=tmp_path)) as port:
        with Trainer(port.address, Credentials(tls=plainly.tls)) as trainer, pytest.raises(CallError) as raised:
            trainer.status()
        assert "it does not speak TLS: leave --tls-ca and PARAMSYNC_TLS_CA out" in str(raised.value)
    with Trainer(port.address, Credentials(tls=plainly.tls)) as trainer, pytest.raises(NotReachableError):
        trainer.status()


def test_handshakes_that_fail_leave_nothing_and_keep_nobody_out(authority: Authority, tmp_path: Path) -> None:
    files = authority.sign("server")
    with small_limits(tmp_path, tls=TlsFiles(files.certificate, files.key)) as web:
        for _ in range(40):
            with socket.create_connection(("127.0.0.1", web.rest_port), timeout=LONG) as plain:
                plain.sendall(b"\x16\x03\x01nonsense" * 20)
        silent = [socket.create_connection(("127.0.0.1", web.rest_port), timeout=LONG) for _ in range(40)]
        context = ssl.create_default_context(cafile=str(authority.file))
        with closing(http.client.HTTPSConnection("127.0.0.1", web.rest_port, timeout=LONG, context=context)) as caller:
            caller.request("GET", "/v1/models/plain")
            assert caller.getresponse().status == 200
        connections = web.rest._connections
        eventually(lambda: len(connections) == 0, lambda: f"{len(connections)} connections to be forgotten")
        for connection in silent:
            assert connection.recv(1) == b""
            connection.close()


# What cannot be used --------------------------------------------------------------------------------------------------


def test_a_key_that_others_can_read_is_refused_with_the_mode_it_should_have(authority: Authority) -> None:
    files = authority.sign("server")
    files.key.chmod(0o644)
    with pytest.raises(SettingsError, match=r"--tls-key .*: expected mode 0600, found 0644, by which everybody.*"):
        tls_files(files.certificate, files.key, None)


def test_files_that_do_not_belong_together_or_are_none_are_refused(authority: Authority, tmp_path: Path) -> None:
    files, other = authority.sign("server"), authority.sign("other")
    with pytest.raises(SettingsError, match=r"expected a certificate and its key.*key values mismatch"):
        tls_files(files.certificate, other.key, None)
    (nothing := tmp_path / "nothing").touch(0o600)
    for wrong in ((nothing, files.key), (files.certificate, nothing)):
        with pytest.raises(SettingsError, match=r"expected a certificate and its key"):
            tls_files(*wrong, None)
    with pytest.raises(SettingsError, match=r"--tls-client-ca .*: expected certificates in PEM"):
        tls_files(files.certificate, files.key, nothing)
    with pytest.raises(SettingsError, match=r"--tls-ca .*: expected certificates in PEM"):
        ClientTls(nothing)
    with pytest.raises(SettingsError, match=r"--tls-cert .*none: cannot be read: No such file"):
        tls_files(tmp_path / "none", files.key, None)
    for given in ((files.certificate, None, None), (None, files.key, None), (None, None, authority.file)):
        with pytest.raises(SettingsError, match="expected --tls-cert FILE and --tls-key FILE"):
            tls_files(*given)
    assert tls_files(None, None, None) is None
