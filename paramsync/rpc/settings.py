"""What the environment says about credentials, for both programs, the commands, and publishers in other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paramsync.errors import SettingsError

if TYPE_CHECKING:
    from paramsync.rpc.tls import ClientTls
    from paramsync.rpc.tokens import Tokens

TOKEN, TOKEN_FILE = "PARAMSYNC_TOKEN", "PARAMSYNC_TOKEN_FILE"
TLS_CA, TLS_CERT, TLS_KEY = "PARAMSYNC_TLS_CA", "PARAMSYNC_TLS_CERT", "PARAMSYNC_TLS_KEY"


class OptionNames(NamedTuple):
    """What the credentials of a server are called where it is started, for errors and advice."""

    tokens: str
    certificate: str
    key: str
    client_ca: str


FLAGS = OptionNames(f"--token-file FILE (or {TOKEN})", "--tls-cert", "--tls-key", "--tls-client-ca")
KEYWORDS = OptionNames(f"{TOKEN_FILE} (or {TOKEN})", "tls_cert", "tls_key", "tls_client_ca")


def tokens(file: Path | None = None) -> Tokens | None:
    """Of the file that --token-file names, else of the environment; None where there are none. Raises SettingsError."""
    named, text = os.environ.get(TOKEN_FILE), os.environ.get(TOKEN)
    if file is None and not named and not text:
        return None
    from paramsync.rpc.tokens import Tokens  # here: a command that shows none need not import it

    if file is not None:
        return Tokens("--token-file", file)
    return Tokens(TOKEN_FILE, Path(named)) if named else Tokens(TOKEN, None, text or "")


def client_tls(ca: Path | None, certificate: Path | None, key: Path | None) -> ClientTls | None:
    """As the commands are told, by their flags or else by the environment; None: in plain. Raises SettingsError."""
    ca, certificate, key = (
        Path(named) if given is None and (named := os.environ.get(name)) else given
        for name, given in ((TLS_CA, ca), (TLS_CERT, certificate), (TLS_KEY, key))
    )
    if ca is None:
        if certificate is not None or key is not None:
            raise SettingsError("--tls-cert and --tls-key: expected --tls-ca FILE with them, found none")
        return None
    from paramsync.rpc.tls import ClientTls  # here: what speaks no TLS need not import it

    return ClientTls(ca, certificate, key)
