"""Who may change something at a port, which tokens are taken, and the line of the log for each change."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from paramsync.errors import NotAllowedError, SettingsError, UnauthenticatedError
from paramsync.rpc import settings
from paramsync.rpc.access import Access, Caller, Effect, bearer, effect_of
from paramsync.rpc.read_again import ReadAgain, read_file, read_secret
from paramsync.rpc.tokens import LEAST, Tokens, read

SECRET = "5ecret-of-the-operators"
OTHER = "another-5ecret-of-theirs"
PIN = "paramsync.v1.Sync/Pin"


def written(file: Path, text: str, mode: int = 0o600) -> Path:
    file.write_text(text)
    file.chmod(mode)
    return file


def caller(token: str | None) -> Caller:
    return Caller("ipv4:10.0.0.7:4711", token)


def tokens(text: str = SECRET) -> Tokens:
    return Tokens("PARAMSYNC_TOKEN", None, text)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_with_tokens_a_change_needs_one_wherever_the_port_listens(host: str) -> None:
    access = Access(host=host, tokens=tokens())
    access.check(PIN, caller(SECRET))
    for wrong in (None, "", SECRET[:-1], f"{SECRET}x", SECRET.upper(), SECRET.encode().hex(), "é" * 40, "\udcff"):
        with pytest.raises(UnauthenticatedError, match=f"{PIN}: expected a token that is known here, found"):
            access.check(PIN, caller(wrong))


def test_with_nothing_configured_only_this_machine_changes_something() -> None:
    local, open_to_others = Access(host="127.0.0.1"), Access(host="0.0.0.0")
    local.check(PIN, caller(None))
    assert local.advice == ""
    for token in (None, SECRET):
        with pytest.raises(
            NotAllowedError, match=r"refused on 0\.0\.0\.0.*--token-file FILE.*--tls-client-ca FILE"
        ) as raised:
            open_to_others.check(PIN, caller(token))
        assert not isinstance(raised.value, UnauthenticatedError)
        assert open_to_others.advice in str(raised.value)


def test_reading_is_open_until_it_is_said_to_need_a_token_and_health_is_always() -> None:
    open_reads, closed_reads = Access(host="0.0.0.0"), Access(host="0.0.0.0", tokens=tokens(), reads=True)
    assert [effect for effect in Effect if open_reads.looks_at(effect)] == [Effect.CHANGES]
    assert [effect for effect in Effect if closed_reads.looks_at(effect)] == [Effect.READS, Effect.CHANGES]
    with pytest.raises(UnauthenticatedError):
        closed_reads.check_read("Predict", caller(None))
    closed_reads.check_read("Predict", caller(SECRET))


def test_a_method_that_nobody_listed_changes_something() -> None:
    assert effect_of("paramsync.v1.Sync/MadeUp") is Effect.CHANGES
    assert effect_of("") is Effect.CHANGES


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"Bearer {SECRET}", SECRET),
        (f"bearer  {SECRET} ", SECRET),
        (f"BEARER {SECRET}".encode(), SECRET),
        (f"Basic {SECRET}", None),
        (SECRET, None),
        ("Bearer", None),
        (None, None),
    ],
)
def test_the_token_of_a_header(header: str | bytes | None, expected: str | None) -> None:
    assert bearer(header) == expected


def test_tokens_are_exchanged_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = written(tmp_path / "tokens", SECRET)
    found = Tokens("--token-file", file)
    written(tmp_path / "next", f"{OTHER}\n{SECRET}").replace(file)
    assert (found.who(SECRET), found.who(OTHER)) == ("token 2", "token 1")
    written(tmp_path / "next", OTHER).replace(file)
    assert (found.who(SECRET), found.who(OTHER)) == (None, "token 1")
    for broken in ("", "short"):
        written(tmp_path / "next", broken).replace(file)
        assert (found.who(OTHER), found.who(broken)) == ("token 1", None)
    file.unlink()
    assert [found.who(OTHER) for _ in range(3)] == ["token 1"] * 3
    complaints = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(complaints) == 3  # each said once
    assert all("what was there before is still used" in complaint for complaint in complaints)
    written(file, SECRET)
    assert found.who(SECRET) == "token 1"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "expected one token or more, found none"),
        ("\n \n", "expected one token or more, found none"),
        (f"{SECRET}\n{'x' * (LEAST - 1)}", "line 2: expected 16 characters or more, found 15"),
        ("two words of a token", "line 1: expected TOKEN or NAME:TOKEN"),
        (f"a b:{SECRET}", "line 1: expected TOKEN or NAME:TOKEN"),
        (f"{SECRET}\N{GREEK SMALL LETTER ALPHA}", "line 1: expected TOKEN or NAME:TOKEN"),
        ("x" * 5000, "line 1: expected TOKEN or NAME:TOKEN"),
    ],
)
def test_what_is_no_token_is_refused_and_not_shown(text: str, wrong: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(wrong)) as raised:
        read("--token-file tokens", text)
    assert "openssl rand -hex 32" in str(raised.value)
    assert not any(word in str(raised.value) for word in text.split() if len(word) >= LEAST - 1)


@pytest.mark.parametrize(
    ("mode", "who"), [(0o644, "everybody on this machine"), (0o640, "its group"), (0o602, "every")]
)
def test_a_file_of_tokens_that_others_can_read_is_refused_with_the_mode_it_should_have(
    tmp_path: Path, mode: int, who: str
) -> None:
    file = written(tmp_path / "tokens", SECRET, mode)
    with pytest.raises(SettingsError, match=f"expected mode 0600, found {mode:04o}, by which {who}.*chmod 600 {file}"):
        Tokens("--token-file", file)


def test_the_group_may_read_a_file_that_is_mounted_for_a_process_of_another_owner(tmp_path: Path) -> None:
    file = written(tmp_path / "tokens", SECRET, 0o640)
    if os.geteuid() == 0:
        os.chown(file, 10001, 10001)
        assert Tokens("--token-file", file).who(SECRET) == "token 1"
        file.chmod(0o644)
    with pytest.raises(SettingsError, match="expected mode 0600"):
        Tokens("--token-file", file)


def test_the_flag_counts_more_than_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.TOKEN, raising=False)
    monkeypatch.delenv(settings.TOKEN_FILE, raising=False)
    assert settings.tokens() is None
    firsts = []
    monkeypatch.setenv(settings.TOKEN, "the-one-of-the-environment")
    firsts.append(settings.tokens())
    monkeypatch.setenv(settings.TOKEN_FILE, str(written(tmp_path / "named", "the-one-of-the-file-named")))
    firsts.append(settings.tokens())
    firsts.append(settings.tokens(written(tmp_path / "given", SECRET)))
    assert [found.first() for found in firsts if found] == [
        "the-one-of-the-environment",
        "the-one-of-the-file-named",
        SECRET,
    ]
    monkeypatch.setenv(settings.TOKEN_FILE, str(tmp_path / "none"))
    with pytest.raises(SettingsError, match=r"PARAMSYNC_TOKEN_FILE .*none: cannot be read: No such file"):
        settings.tokens()


def test_each_change_is_one_line_of_the_log_whatever_its_names_hold(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "paramsync.audit")
    access = Access(host="127.0.0.1", tokens=tokens(f"ops:{SECRET}"))
    forged = "m\"\nwhat='Pin' who='root'\x1b[2J\u2028\r"
    with access.audited(PIN, caller(SECRET), forged):
        pass
    with suppress(ValueError), access.audited(PIN, caller(SECRET)):
        raise ValueError(forged)
    with suppress(asyncio.CancelledError), access.audited(PIN, caller(SECRET)):
        raise asyncio.CancelledError
    with suppress(UnauthenticatedError):
        access.check(forged, caller(forged))
    done, failed, left, refused = [record.getMessage() for record in caplog.records]
    for line in (done, failed, left, refused):
        assert line.isprintable()
        assert "'ipv4:10.0.0.7:4711'" in line
        assert SECRET not in line
    assert done.startswith(f"what='{PIN}' request=")
    assert done.endswith("who='ops' from='ipv4:10.0.0.7:4711' outcome='done'")
    assert "outcome='failed' why=" in failed
    assert left.endswith("outcome='failed' why='its caller left'")
    assert "outcome='refused' why=" in refused
    assert "who=" not in refused.partition(" from=")[0].rpartition("\\r'")[2]


def test_of_many_refusals_the_first_are_told_and_then_their_count_and_every_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "paramsync.audit")
    access = Access(host="127.0.0.1", tokens=tokens())
    for port in range(1000):
        with pytest.raises(UnauthenticatedError):
            access.check(PIN, Caller(f"ipv4:10.0.0.7:{port}", None))
    with pytest.raises(UnauthenticatedError):
        access.check(PIN, Caller("ipv4:10.0.0.8:1", None))
    for _ in range(20):
        with access.audited(PIN, caller(SECRET)):
            pass
    outcomes = [re.findall(r"outcome='(\w+)'", record.getMessage()) for record in caplog.records]
    assert outcomes == [["refused"]] * 11 + [["done"]] * 20
    access.tell_refusals()
    [count] = [record.getMessage() for record in caplog.records[31:]]
    assert count == "outcome='refused' more=990 within='60 s, not told one by one' from='ipv4:10.0.0.7' (990)"
    with pytest.raises(UnauthenticatedError):
        access.check(PIN, caller(None))
    access.tell_refusals()
    assert [record.getMessage()[:24] for record in caplog.records[32:]] == ["outcome='refused' more=1"]
    access.tell_refusals()
    with pytest.raises(UnauthenticatedError):
        access.check(PIN, caller(None))
    assert [record.getMessage()[:10] for record in caplog.records[33:]] == ["what='para"]


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
            assert self.may_go_on.wait(300)
        return content


def test_what_was_read_late_does_not_take_the_place_of_what_is_newer(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(b"first")
    text = Text(path)
    path.write_bytes(b"revoked meanwhile")
    late = threading.Thread(target=text.value)
    late.start()
    assert text.has_read.wait(300)
    path.write_bytes(b"third, the newest")
    assert text.value() == b"third, the newest"
    text.may_go_on.set()
    late.join(300)
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
