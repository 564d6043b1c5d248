"""`paramsync open`: opens the operator's page of an inferencer in a browser."""

from __future__ import annotations

import sys
import webbrowser
from argparse import Namespace

from paramsync.cli.settings import credentials
from paramsync.rpc.addresses import check_address


def run(arguments: Namespace) -> bool:
    """Print the page's address and open it. Returns True if a browser opens it. Raises SettingsError."""
    scheme = "http" if credentials(arguments).tls is None else "https"
    address = f"{scheme}://{check_address(arguments.http)}/"
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    if webbrowser.open(address):
        return True
    sys.stderr.write("paramsync open: no browser was found here: open that address where there is one\n")
    return False
