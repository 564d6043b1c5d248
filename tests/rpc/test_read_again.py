"""Files of tokens, keys and certificates that change while they are in use."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from paramsync.errors import SettingsError
from paramsync.rpc.read_again import ReadAgain, read_file, read_secret


class Text(ReadAgain[bytes]):
    """Other threads than the main one wait with what they have read until they may go on."""

    def __init__(self, path: Path) -> None:
        self.has_read, self.may_go_on = threading.Event(), threading.Event()
        self.path = path
        super().__init__(path)

    def _read(self) -> bytes:
        content = read_file("--file", self.path)
        if threading.current_thread() is not threading.main_thread():
            self.has_read.set()
            assert self.may_go_on.wait(20)
        return content


def test_what_was_read_late_does_not_take_the_place_of_what_is_newer(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(b"first")
    text = Text(path)
    path.write_bytes(b"revoked meanwhile")
    late = threading.Thread(target=text.value)
    late.start()
    assert text.has_read.wait(20)
    path.write_bytes(b"third, the newest")
    assert text.value() == b"third, the newest"
    text.may_go_on.set()
    late.join(20)
    assert text.value() == b"third, the newest"


@pytest.mark.parametrize("read", [read_file, read_secret])
def test_a_fifo_is_refused_at_once(tmp_path: Path, read: object) -> None:
    assert callable(read)
    os.mkfifo(tmp_path / "token", 0o600)
    with pytest.raises(SettingsError, match=r"^--file .*: expected a regular file, found one of mode prw-------$"):
        read("--file", tmp_path / "token")


def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"expected a regular file, found one of mode d"):
        read_file("--file", tmp_path)
    with pytest.raises(SettingsError, match=r"cannot be read: No such file"):
        read_secret("--file", tmp_path / "none")


def test_a_link_is_followed_as_secrets_are_mounted(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"token")
    (tmp_path / "data").chmod(0o600)
    (tmp_path / "link").symlink_to("data")
    assert read_secret("--file", tmp_path / "link") == b"token"
