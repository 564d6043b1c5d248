"""`paramsync open`: the operator's page of an inferencer, in a browser."""

from __future__ import annotations

import http.client
import sys
import webbrowser
from argparse import Namespace

from paramsync.cli.settings import credentials
from paramsync.errors import CallError, NotReachableError
from paramsync.rpc import tls
from paramsync.rpc.addresses import check_address

_SECONDS = 5.0


def run(arguments: Namespace) -> bool:
    """True where a browser was there to show it. Its address is printed either way.

    Raises SettingsError for what is no HOST:PORT, CallError where nobody is there, or who is there is not trusted.
    """
    shown = credentials(arguments).tls
    _check(check_address(arguments.http), shown)
    address = f"{'http' if shown is None else 'https'}://{arguments.http}/"
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    if webbrowser.open(address):
        return True
    sys.stderr.write("paramsync open: no browser was found here: open that address where there is one\n")
    return False


def _check(address: str, shown: tls.ClientTls | None) -> None:
    connection = (
        http.client.HTTPConnection(address, timeout=_SECONDS)
        if shown is None
        else http.client.HTTPSConnection(address, timeout=_SECONDS, context=shown.context)
    )
    try:
        connection.request("HEAD", "/")
        status = connection.getresponse().status
    except (OSError, UnicodeError, http.client.HTTPException) as error:  # of a host that can be no name, too
        why = str(error) or type(error).__name__
        if not isinstance(error, (ConnectionRefusedError, TimeoutError, UnicodeError)):
            raise _unlike(address, shown, why) from error
        raise NotReachableError("inferencer's port for HTTP", address, why) from error
    finally:
        connection.close()
    if status != http.client.OK:
        raise NotReachableError("inferencer's page", address, f"it answers with HTTP status {status}")


def _unlike(address: str, shown: tls.ClientTls | None, why: str) -> CallError:
    """The error where one side does not speak TLS, or a certificate is not taken; else that nobody can be reached."""
    trouble = tls.advise_tls(address) if shown is None else shown.explain(address)
    if trouble is None:
        return NotReachableError("inferencer's port for HTTP", address, why)
    return CallError(f"inferencer's port for HTTP at {address}: {trouble}", "UNAVAILABLE")
