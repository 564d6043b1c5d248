"""Object stores with an empty bucket each: the servers that `make buckets` installs, and a stand-in for Google's."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from tests.support import buckets, gcs
from tests.support.buckets import BUCKET, SeaweedFs, free_ports
from tests.support.programs import eventually

INSTALLED = Path(sys.prefix) / "stores"
_PYTHON = (sys.executable,)
_MOTO = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
application, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

def answer(environ, start_response):
    with lock:
        return application(environ, start_response)

run_simple("127.0.0.1", int(sys.argv[2]), answer, threaded=True)
"""
ACCOUNT = "devstoreaccount1"  # Azurite's, with the key that its documentation names
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class ObjectStore:
    """The address of a bucket, and for each way to its server the variables by which programs find the server."""

    address: str
    environments: Sequence[Mapping[str, str]]


@contextmanager
def seaweedfs(folder: Path) -> Iterator[ObjectStore]:
    with SeaweedFs(folder) as server:
        yield ObjectStore(f"s3://{BUCKET}", [buckets.environment(endpoint) for endpoint in server.endpoints])


@contextmanager
def moto(folder: Path) -> Iterator[ObjectStore]:
    """Moto, answering one request at a time, because its threads would check the conditions of two writes at once.

    Each connection has its own thread, because clients keep some connections open and idle.
    """
    with _running(folder, "bin/moto_server", "{port}", interpreter=(sys.executable, "-c", _MOTO)) as endpoint:
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")).close()
        yield ObjectStore(f"s3://{BUCKET}", [buckets.environment(endpoint)])


@contextmanager
def rclone(folder: Path) -> Iterator[ObjectStore]:
    """An S3 server that ignores conditions of a write."""
    (folder / BUCKET).mkdir()
    options = ("--addr", "127.0.0.1:{port}", "--auth-key", "any,anything", "--config", "")
    with _running(folder, "bin/rclone", "serve", "s3", *options, ".") as endpoint:
        yield ObjectStore(f"s3://{BUCKET}", [buckets.environment(endpoint)])


@contextmanager
def azurite(folder: Path) -> Iterator[ObjectStore]:
    options = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")
    program = "node_modules/.bin/azurite-blob"
    with _running(folder, program, "--blobHost", "127.0.0.1", "--blobPort", "{port}", *options) as endpoint:
        _make_container(endpoint)
        found = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": endpoint, "AZURE_ALLOW_HTTP": "true"}
        yield ObjectStore(f"az://{BUCKET}", [found])


@contextmanager
def google(folder: Path) -> Iterator[ObjectStore]:
    with gcs.Gcs() as server:
        yield ObjectStore(server.address, [server.environment])


@contextmanager
def gcs_emulator(folder: Path) -> Iterator[ObjectStore]:
    """An emulator of Google's interface that knows neither ETags nor conditions of a write."""
    options = ("--host", "127.0.0.1", "--port", "{port}", "--in-memory", "--default-bucket", BUCKET)
    with _running(folder, "bin/gcp-storage-emulator", "start", *options, interpreter=_PYTHON) as endpoint:
        yield ObjectStore(f"gs://{BUCKET}", [gcs.environment(endpoint)])


SERVERS: dict[str, Callable[[Path], AbstractContextManager[ObjectStore]]] = {
    "seaweedfs": seaweedfs,
    "moto": moto,
    "azurite": azurite,
    "google": google,
    "rclone": rclone,
    "gcs-emulator": gcs_emulator,
}


@contextmanager
def _running(folder: Path, program: str, *arguments: str, interpreter: Sequence[str] = ()) -> Iterator[str]:
    """Run a program. `{port}` in its arguments becomes its port. Yields its endpoint."""
    path = INSTALLED / program
    assert path.exists(), f"{path.name} is not installed: make buckets"
    with ExitStack() as until_end:
        [port] = free_ports(1, until_end)
        command = [*interpreter, str(path), *[argument.format(port=port) for argument in arguments]]
        log = folder / "log"
        environment = os.environ | {"PYTHONPATH": str(INSTALLED)}
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, cwd=folder, env=environment)
        until_end.enter_context(process)
        until_end.callback(process.kill)
        request = urllib.request.Request(f"http://127.0.0.1:{port}")
        eventually(lambda: buckets.answers(request), lambda: f"{path.name}:\n{log.read_text(errors='replace')[-3000:]}")
        yield request.full_url


def _make_container(endpoint: str) -> None:
    """Make Azurite's container, because obstore cannot make containers."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    signed = "\n".join(f"{name}:{value}" for name, value in headers.items())
    text = f"PUT{12 * chr(10)}{signed}\n/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256)).decode()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
    address = f"{endpoint}/{ACCOUNT}/{BUCKET}?restype=container"
    urllib.request.urlopen(urllib.request.Request(address, method="PUT", headers=headers)).close()
