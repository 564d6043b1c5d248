"""The commands' settings from the environment."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramsync.rpc.client import Credentials

SERVER = "PARAMSYNC_SERVER"
"""This variable has the control ports of inferencers as HOST:PORT, separated by commas."""

_GRPC_VERBOSITY = "GRPC_VERBOSITY"
_FOR_TERMINALS = {"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}


def environment_for_logs() -> dict[str, str]:
    """Return the environment for a child process whose output is a log.

    It lacks the variables that make a child draw as on a terminal, or that silence gRPC.
    """
    return {name: value for name, value in os.environ.items() if name not in {*_FOR_TERMINALS, _GRPC_VERBOSITY}}


def silence_grpc() -> None:
    """Stop gRPC's C library from logging errors that it also raises. Call this before gRPC is imported."""
    os.environ.setdefault(_GRPC_VERBOSITY, "NONE")


def servers() -> str:
    """Return the text of `SERVER`; empty if it is not set."""
    return os.environ.get(SERVER, "")


def credentials(arguments: Namespace | None = None) -> Credentials:
    """Return the token and certificates from a command's arguments, or from the environment. Raises SettingsError."""
    from paramsync.rpc import settings  # here, because --help does not need it
    from paramsync.rpc.client import Credentials

    given = arguments or Namespace(token_file=None, tls_ca=None, tls_cert=None, tls_key=None)
    tokens = settings.tokens(given.token_file)
    tls = None
    if (files := settings.client_files(given.tls_ca, given.tls_cert, given.tls_key)) is not None:
        from paramsync.rpc.tls import ClientTls  # here, because most commands do not use TLS

        tls = ClientTls(*files)
    return Credentials(token=None if tokens is None else tokens.first(), tls=tls)
