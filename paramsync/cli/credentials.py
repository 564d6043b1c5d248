"""What the commands show to servers, and how they call them: by their arguments, or by the environment."""

from __future__ import annotations

from argparse import Namespace

from paramsync.rpc import settings
from paramsync.rpc.client import Credentials


def credentials(arguments: Namespace | None = None) -> Credentials:
    """Of a command, or of the environment alone. Raises SettingsError."""
    given = arguments or Namespace(token_file=None, tls_ca=None, tls_cert=None, tls_key=None)
    tokens = settings.tokens(given.token_file)
    tls = None
    if (files := settings.client_files(given.tls_ca, given.tls_cert, given.tls_key)) is not None:
        from paramsync.rpc.tls import ClientTls  # here: most commands speak no TLS

        tls = ClientTls(*files)
    return Credentials(token=None if tokens is None else tokens.first(), tls=tls)
