"""Tokens: secrets that allow callers to change something, each with the name of its owner."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from pathlib import Path

from paramsync.errors import SettingsError
from paramsync.rpc.read_again import ReadAgain, read_secret

LEAST = 16  # fewest characters of a secret
_MOST = 4096  # most characters of a line, and most lines: the token of each call is compared with all of them
_LINE = re.compile(r"(?:(?P<name>[\w.@-]{1,100}):\s*)?(?P<secret>[A-Za-z0-9._~+/-]+=*)", re.ASCII)
_HOW = "make one with: openssl rand -hex 32"


@dataclass(frozen=True, slots=True)
class Token:
    """A secret, and the name of its owner for the log."""

    name: str
    secret: str = field(repr=False)


class Tokens(ReadAgain[tuple[Token, ...]]):
    """The valid tokens, read again when their file changes. Safe to use from any thread."""

    def __init__(self, option: str, file: Path | None, text: str = "") -> None:
        """Read the tokens from a file, or else from a text; `option` names it in errors. Raises SettingsError."""
        self._option = option
        self._text = text
        self._file = file
        super().__init__(*(() if file is None else (file,)))

    def who(self, secret: str) -> str | None:
        """Return the owner of a token; None if it is not valid. The time of a call reveals nothing about tokens."""
        shown, name = _digest(secret), None
        for token in self.value():
            if hmac.compare_digest(_digest(token.secret), shown):
                name = token.name
        return name

    def first(self) -> str:
        """Return the token to send to other servers."""
        return self.value()[0].secret

    def _read(self) -> tuple[Token, ...]:
        if self._file is None:
            return read(self._option, self._text)
        content = read_secret(self._option, self._file)
        return read(f"{self._option} {self._file}", content.decode(errors="replace"))


def read(where: str, text: str) -> tuple[Token, ...]:
    """Read a text with a TOKEN or NAME:TOKEN per line. Raises SettingsError, whose text shows no token."""
    tokens = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip()) if len(line) <= _MOST else None
        if match is None:
            raise SettingsError(
                f"{where}, line {number}: expected TOKEN or NAME:TOKEN, of letters, digits and '-._~+/', found"
                f" something else; {_HOW}"
            )
        if len(match["secret"]) < LEAST:
            found = len(match["secret"])
            raise SettingsError(f"{where}, line {number}: expected {LEAST} characters or more, found {found}; {_HOW}")
        tokens.append(Token(match["name"] or f"token {number}", match["secret"]))
    if not 0 < len(tokens) <= _MOST:
        raise SettingsError(f"{where}: expected one token or more, found {len(tokens) or 'none'}; {_HOW}")
    return tuple(tokens)


def _digest(secret: str) -> bytes:
    """Return a digest of a secret. Digests are compared because they all have the same length."""
    return hashlib.sha256(secret.encode(errors="replace")).digest()
