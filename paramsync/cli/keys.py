"""`paramsync keys`: makes a private key to sign versions with, and the public key for inferencers."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from paramsync.cli.formatting import console, to_json
from paramsync.errors import SettingsError
from paramsync.store.signing import create_keys


def run(arguments: Namespace) -> bool:
    prefix = Path(arguments.prefix)
    try:
        private, public, key = create_keys(prefix)
    except OSError as error:
        raise SettingsError(f"{prefix}: cannot be written: {error.strerror}") from error
    if arguments.json:
        sys.stdout.write(to_json({"private": str(private), "public": str(public), "id": key}))
        return True
    screen = console()
    screen.print(f"key {key}", style="bold")
    screen.print(f"{private}: for the publisher alone, --signing-key {private}", soft_wrap=True)
    screen.print(f"{public}: for every inferencer, --trust {public}", soft_wrap=True)
    return True
