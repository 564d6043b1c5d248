"""`paramsync open`, with whatever the environment calls a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramsync.cli.__main__ import main
from tests.support.certificates import Authority
from tests.support.commands import only_line


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
