"""SeaweedFS, a real S3 server: one filer, and two gateways to it, as people run them behind a load balancer."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from obstore.store import S3Store

from tests.support.programs import eventually

BUCKET = "paramsync"
_PORTS = range(10_000, 22_000)


class SeaweedFs:
    """The server, with an empty bucket. `make buckets` installs it."""

    bucket = BUCKET

    def __init__(self, folder: Path) -> None:
        weed = shutil.which("weed", path=str(Path(sys.executable).parent))
        assert weed is not None, "SeaweedFS is not installed: make buckets"
        self._weed, self._folder = weed, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._commands: list[tuple[str, ...]] = []
        self._taken = ExitStack()
        master, volume, filer, *gateways = free_ports(5, self._taken)
        (folder / "data").mkdir(parents=True)
        self._run("server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-filer", f"-filer.port={filer}",
                  f"-master.port={master}", f"-volume.port={volume}", "-volume.max=400",
                  "-master.volumeSizeLimitMB=64")  # fmt: skip
        self._filer = filer
        self.endpoints = [f"http://127.0.0.1:{port}" for port in gateways]
        self._until_answered(f"http://127.0.0.1:{filer}/")
        for port in gateways:
            self._run("s3", f"-port={port}", f"-filer=127.0.0.1:{filer}", "-port.iceberg=0", "-port.lance=0")
        for endpoint in self.endpoints:
            self._until_answered(endpoint)
        made = urllib.request.Request(f"{self.endpoints[0]}/{BUCKET}", method="PUT")
        eventually(lambda: answers(made), lambda: f"a bucket:\n{self._log}")

    def __enter__(self) -> SeaweedFs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        self._taken.close()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def crash(self) -> None:
        """Kill the server and start it again. Unlike after a power cut, the kernel keeps its unsynced files."""
        self._kill()
        self._processes.clear()
        for command in self._commands:
            self._start(*command)
        for endpoint in self.endpoints:
            self._until_answered(endpoint)

    def store(self, folder: str, *, gateway: int = 0, endpoint: str = "", **options: Any) -> Any:
        """Return obstore's store of a folder in the bucket, through a gateway or through a proxy at `endpoint`."""
        return S3Store(
            BUCKET,
            prefix=folder,
            endpoint=endpoint or self.endpoints[gateway],
            region="us-east-1",
            access_key_id="any",
            secret_access_key="anything",
            client_options={"allow_http": True},
            **options,
        )

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within this context, the server is stopped: calls get no answer."""
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in self._processes:
                process.send_signal(signal.SIGCONT)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which programs find the server."""
        return environment(self.endpoints[0])

    def _run(self, *arguments: str) -> None:
        self._commands.append(arguments)
        self._start(*arguments)

    def _start(self, *arguments: str) -> None:
        with (self._folder / "log").open("ab") as log:
            command = [self._weed, *arguments, "-ip.bind=127.0.0.1"]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder))

    def _until_answered(self, address: str) -> None:
        eventually(lambda: answers(urllib.request.Request(address)), lambda: f"{address}:\n{self._log}")

    @property
    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-3000:]


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which programs find an S3 server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def answers(request: urllib.request.Request) -> bool:
    try:
        with urllib.request.urlopen(request, timeout=30):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500 and request.get_method() == "GET"
    except OSError:
        return False


def free_ports(count: int, taken: ExitStack) -> list[int]:
    """Return free ports P for which P + 10,000 is free, too, because SeaweedFS listens there for gRPC.

    No other test run takes the ports before `taken` closes, and the kernel gives them to no connection.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = secrets.choice(_PORTS)
        name = socket.socket(socket.AF_UNIX)  # exists, without a file, as long as this process has the socket
        try:
            name.bind(f"\0paramsync-test-{port}")
            for number in (port, port + 10_000):
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", number))
        except OSError:
            name.close()
        else:
            taken.callback(name.close)
            ports.append(port)
    return ports


def main() -> int:
    """Run a command with a server in the background, and with the environment in which it finds the server."""
    with TemporaryDirectory() as folder, SeaweedFs(Path(folder)) as server:
        return subprocess.run(sys.argv[1:], env=os.environ | server.environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
