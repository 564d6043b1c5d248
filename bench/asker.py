"""A process that asks a server again and again until a version answers: `python -m bench.asker ADDRESS REQUEST`.

The process reads a version number from each line of its input. It prints the number once an answer came from that
version or a newer version. So the process that publishes need not ask the server itself.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from bench.served import OPTIONS, PREDICT
from paramsync.errors import CallError
from paramsync.v1 import serving_pb2

if TYPE_CHECKING:
    from typing_extensions import Self

_PAUSE = 0.001  # seconds between two calls: shorter pauses would load the server


class Lines:
    """A process of `python -m PROGRAM` that answers each line with a line. For one `with` block, on one thread."""

    def __init__(self, program: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, line: str = "") -> str:
        """Return the answer to a line; "" if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Asker(Lines):
    """The process of this module."""

    def __init__(self, address: str, request: Path) -> None:
        super().__init__("bench.asker", address, request)

    def until(self, version: int) -> None:
        """Return once an answer came from this version or a newer version. Raises CallError."""
        if (answer := self.ask(str(version))) != str(version):
            raise CallError(f"version {version} was not served: {answer or 'the asker has ended'}", "UNKNOWN")


def _ask(address: str, request: bytes) -> None:
    bell = threading.Event()
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        predict = channel.unary_unary(PREDICT, bytes, bytes)
        for line in sys.stdin:
            try:
                while _version(predict(request)) < int(line):
                    bell.wait(_PAUSE)
                answer = line
            except grpc.RpcError as error:
                answer = f"failed {error.code().name}\n"
            sys.stdout.write(answer)
            sys.stdout.flush()


def _version(answer: bytes) -> int:
    return serving_pb2.PredictResponse.FromString(answer).model_spec.version.value


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.asker")
    parser.add_argument("address")
    parser.add_argument("request", type=Path)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        _ask(arguments.address, arguments.request.read_bytes())


if __name__ == "__main__":
    main()
