"""What the commands show to servers: a token, of a file or of the environment."""

from __future__ import annotations

from argparse import Namespace

from paramsync.rpc import settings
from paramsync.rpc.client import Credentials


def credentials(arguments: Namespace | None = None) -> Credentials:
    """Of a command's arguments, else of the environment. Raises SettingsError."""
    tokens = settings.tokens(None if arguments is None else arguments.token_file)
    return Credentials(token=None if tokens is None else tokens.first())
