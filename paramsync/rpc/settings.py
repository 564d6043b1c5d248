"""Reads credentials from the environment, for both programs, the commands, and publishers in other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paramsync.errors import SettingsError

if TYPE_CHECKING:
    from paramsync.rpc.tokens import Tokens

TOKEN, TOKEN_FILE = "PARAMSYNC_TOKEN", "PARAMSYNC_TOKEN_FILE"
TLS_CA, TLS_CERT, TLS_KEY = "PARAMSYNC_TLS_CA", "PARAMSYNC_TLS_CERT", "PARAMSYNC_TLS_KEY"


class OptionNames(NamedTuple):
    """The names of a server's credential options in errors and advice: flags or keywords."""

    tokens: str
    certificate: str
    key: str
    client_ca: str


FLAGS = OptionNames(f"--token-file FILE (or {TOKEN})", "--tls-cert", "--tls-key", "--tls-client-ca")
KEYWORDS = OptionNames(f"{TOKEN_FILE} (or {TOKEN})", "tls.certificate", "tls.key", "tls.client_ca")


def tokens(file: Path | None = None) -> Tokens | None:
    """Return the tokens from --token-file, or else from the environment; None without tokens. Raises SettingsError."""
    named, text = os.environ.get(TOKEN_FILE), os.environ.get(TOKEN)
    if file is None and not named and not text:
        return None
    from paramsync.rpc.tokens import Tokens  # imported here, because most commands need no tokens

    if file is not None:
        return Tokens("--token-file", file)
    return Tokens(TOKEN_FILE, Path(named)) if named else Tokens(TOKEN, None, text or "")


def client_files(
    ca: Path | None, certificate: Path | None, key: Path | None
) -> tuple[Path, Path | None, Path | None] | None:
    """Return the files for calls with TLS, from flags or else from the environment; None for plaintext calls.

    Raises SettingsError for a certificate without a CA.
    """
    ca, certificate, key = (
        Path(named) if given is None and (named := os.environ.get(name)) else given
        for name, given in ((TLS_CA, ca), (TLS_CERT, certificate), (TLS_KEY, key))
    )
    if ca is not None:
        return ca, certificate, key
    if certificate is not None or key is not None:
        raise SettingsError("--tls-cert and --tls-key: expected --tls-ca FILE with them, found none")
    return None
