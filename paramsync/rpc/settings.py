"""What the environment says about credentials, for both programs, the commands, and publishers in other programs."""

from __future__ import annotations

import os
from pathlib import Path

from paramsync.rpc.tokens import Tokens

TOKEN, TOKEN_FILE = "PARAMSYNC_TOKEN", "PARAMSYNC_TOKEN_FILE"


def tokens(file: Path | None = None) -> Tokens | None:
    """Of the file that --token-file names, else of the environment; None where there are none. Raises SettingsError."""
    if file is not None:
        return Tokens("--token-file", file)
    if named := os.environ.get(TOKEN_FILE):
        return Tokens(TOKEN_FILE, Path(named))
    text = os.environ.get(TOKEN, "")
    return Tokens(TOKEN, None, text) if text else None
