"""Somebody who asks a server again and again, as a process: `python -m bench.asker ADDRESS REQUEST` reads versions.

For each, a line, it says when an answer came from that version or a newer one: so that who publishes does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from pathlib import Path

import grpc

from bench.lines import Lines
from bench.served import PREDICT
from paramsync.errors import CallError
from paramsync.v1 import serving_pb2

_PAUSE = 0.001  # seconds between two calls: more often would be load
_FAILED = "failed"


class Asker(Lines):
    """The process."""

    def __init__(self, address: str, request: Path) -> None:
        super().__init__("bench.asker", address, request)

    def until(self, version: int) -> None:
        """Returns once an answer came from this version, or a newer one. Raises CallError."""
        if (said := self.ask(str(version))) != str(version):
            raise CallError(f"version {version} was not served: {said or 'nobody asks any more'}", "UNKNOWN")


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
