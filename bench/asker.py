"""Somebody who asks a server again and again, as a process: `python -m bench.asker ADDRESS REQUEST` reads versions.

For each, a line, it says when an answer came from that version or a newer one: so that who publishes does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

import grpc

from bench.served import PREDICT
from paramsync.errors import CallError
from paramsync.v1 import serving_pb2

_PAUSE = 0.001  # seconds between two calls: more often would be load
_FAILED = "failed"


class Asker:
    """The process, for one thread."""

    def __init__(self, address: str, request: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.asker", address, str(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def until(self, version: int) -> None:
        """Returns once an answer came from this version, or a newer one. Raises CallError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{version}\n")
        if (said := self._process.stdout.readline().strip()) != str(version):
            raise CallError(f"version {version} was not served: {said or 'nobody asks any more'}", "UNKNOWN")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Asker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ask(address: str, request: bytes) -> None:
    bell = threading.Event()
    with grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        predict = channel.unary_unary(PREDICT, bytes, bytes)
        for line in sys.stdin:
            try:
                while _version(predict(request)) < int(line):
                    bell.wait(_PAUSE)
                said = line
            except grpc.RpcError as error:
                said = f"{_FAILED} {error.code().name}\n"
            sys.stdout.write(said)
            sys.stdout.flush()


def _version(answer: bytes) -> int:
    return serving_pb2.PredictResponse.FromString(answer).model_spec.version.value


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.asker")
    parser.add_argument("address")
    parser.add_argument("request", type=Path)
    found = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        _ask(found.address, found.request.read_bytes())


if __name__ == "__main__":
    main()
