"""Who may change something at a port, which tokens are taken, and the line of the log for each change."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import re
from contextlib import suppress
from pathlib import Path

import pytest

from paramsync.errors import NotAllowedError, SettingsError, UnauthenticatedError
from paramsync.rpc import settings
from paramsync.rpc.access import Access, Caller, Effect, RefusalLimit, bearer, effect_of
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


def test_each_line_of_a_file_is_a_token_with_the_name_of_who_has_it(tmp_path: Path) -> None:
    found = Tokens("--token-file", written(tmp_path / "tokens", f"ops: {SECRET}\n\n  {OTHER}\r\n"))
    assert (found.who(SECRET), found.who(OTHER), found.who("ops"), found.first()) == ("ops", "token 3", None, SECRET)
    again = pickle.loads(pickle.dumps(found))  # as a worker gets it
    assert (again.who(OTHER), repr(again.value())) == ("token 3", "(Token(name='ops'), Token(name='token 3'))")


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


def test_many_hosts_have_a_bound_together() -> None:
    limit = RefusalLimit()
    assert sum(limit.is_told(f"10.0.{host // 256}.{host % 256}") for host in range(1000) for _ in range(20)) == 60
    more = limit.next()
    assert (len(more), more.total()) == (65, 20_000 - 60)
    assert more["others"] == max(more.values())


def test_where_everybody_may_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "paramsync.audit")
    with Access(host="::1").audited(PIN, caller(None)):
        pass
    assert "who='anybody here'" in caplog.text


def test_tokens_that_others_could_read_on_their_way_are_warned_of() -> None:
    assert "tokens and answers are not encrypted on 0.0.0.0" in Access(host="0.0.0.0", tokens=tokens()).in_plain(
        tls=False
    )
    for host, tls in (("127.0.0.1", False), ("0.0.0.0", True)):
        assert Access(host=host, tokens=tokens()).in_plain(tls=tls) == ""
    assert Access(host="0.0.0.0").in_plain(tls=False) == ""
