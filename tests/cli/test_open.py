"""`paramsync open`, with whatever the environment calls a browser."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from paramsync.cli.__main__ import main
from paramsync.rpc.tls import ServerTls, TlsFiles
from tests.support.certificates import Authority
from tests.support.commands import only_line


class Page(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200 if self.path == "/" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Quiet(HTTPServer):
    def handle_error(self, *_: object) -> None:
        """Of a handshake that the caller breaks off."""


@contextmanager
def served(context: ssl.SSLContext | None = None) -> Iterator[str]:
    with Quiet(("127.0.0.1", 0), Page) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def page() -> Iterator[str]:
    with served() as address:
        yield address


def browser(monkeypatch: pytest.MonkeyPatch, command: Path) -> None:
    monkeypatch.setattr("webbrowser._tryorder", None)  # what was found before
    monkeypatch.setattr("webbrowser._browsers", {})
    monkeypatch.setenv("BROWSER", f"{command} %s")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("DISPLAY", raising=False)


def test_the_page_is_opened_and_its_address_printed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, opened = tmp_path / "browser", tmp_path / "opened"
    command.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    command.chmod(0o755)
    browser(monkeypatch, command)
    assert main(["open", "--http", page]) == 0
    assert opened.read_text() == capsys.readouterr().out == f"http://{page}/\n"
    browser(monkeypatch, tmp_path / "none")
    assert main(["open", "--http", page]) == 1
    out, err = capsys.readouterr()
    assert out == f"http://{page}/\n"
    assert "no browser" in err


@pytest.mark.parametrize(
    ("address", "code"), [("", 2), ("host:name", 2), ("[::1", 2), (f"{'é' * 70}:80", 1), ("127.0.0.1:1", 1)]
)
def test_a_wrong_address_is_one_line(address: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["open", "--http", address]) == code
    out, err = capsys.readouterr()
    assert (out, only_line(err)[:16]) == ("", "paramsync open: ")


def test_a_page_by_tls_is_opened_where_its_certificate_is_trusted(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    files = authority.sign("inferencer")
    browser(monkeypatch, tmp_path / "none")
    with served(ServerTls(TlsFiles(files.certificate, files.key)).http_context()) as address:
        main(["open", "--http", address, "--tls-ca", str(authority.file)])
        assert capsys.readouterr().out == f"https://{address}/\n"
        monkeypatch.setenv("PARAMSYNC_TLS_CA", str(authority.file))
        main(["open", "--http", address])
        assert capsys.readouterr().out == f"https://{address}/\n"
        assert main(["open", "--http", address, "--tls-ca", str(stranger.file)]) == 1
        assert "its certificate is not taken" in only_line(capsys.readouterr().err)
        monkeypatch.delenv("PARAMSYNC_TLS_CA")
        assert main(["open", "--http", address]) == 1
        assert "it speaks TLS: name who signed its certificate with --tls-ca FILE" in only_line(capsys.readouterr().err)
    assert main(["open", "--http", page, "--tls-ca", str(authority.file)]) == 1
    assert "it does not speak TLS: leave --tls-ca and PARAMSYNC_TLS_CA out" in only_line(capsys.readouterr().err)
