"""What the commands take from the environment."""

from __future__ import annotations

import os

SERVER = "PARAMSYNC_SERVER"
"""The control ports of inferencers, HOST:PORT, with commas between them."""

_GRPC_VERBOSITY = "GRPC_VERBOSITY"
_FOR_TERMINALS = {"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}


def environment_for_logs() -> dict[str, str]:
    """For a child whose output is read by a program: nothing may make it draw as on a terminal, or keep quiet."""
    return {name: value for name, value in os.environ.items() if name not in {*_FOR_TERMINALS, _GRPC_VERBOSITY}}


def silence_grpc() -> None:
    """Its C library says on the standard error what its callers are told too. To be called before it is imported."""
    os.environ.setdefault(_GRPC_VERBOSITY, "NONE")


def servers() -> str:
    """The text of `SERVER`; empty where it is not set."""
    return os.environ.get(SERVER, "")
