"""`paramsync open`: the operator's page of an inferencer, in a browser."""

from __future__ import annotations

import http.client
import sys
import webbrowser
from argparse import Namespace

from paramsync.errors import NotReachableError
from paramsync.rpc.addresses import check_address

_SECONDS = 5.0


def run(arguments: Namespace) -> bool:
    """True where a browser was there to show it. Its address is printed either way.

    Raises SettingsError for what is no HOST:PORT, and NotReachableError.
    """
    _check(check_address(arguments.http))
    address = f"http://{arguments.http}/"
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    if webbrowser.open(address):
        return True
    sys.stderr.write("paramsync open: no browser was found here: open that address where there is one\n")
    return False


def _check(address: str) -> None:
    connection = http.client.HTTPConnection(address, timeout=_SECONDS)
    try:
        connection.request("HEAD", "/")
        status = connection.getresponse().status
    except (OSError, UnicodeError, http.client.HTTPException) as error:  # of a host that can be no name, too
        raise NotReachableError("inferencer's port for HTTP", address, str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if status != http.client.OK:
        raise NotReachableError("inferencer's page", address, f"it answers with HTTP status {status}")
