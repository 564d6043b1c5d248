"""A process whose callers check every answer: `python -m bench.traffic ADDRESS REQUEST ...` prints their counts.

Without `--rate`, each of `--callers` calls again after each answer, for `--seconds`. With `--rate`, the process calls
at this rate, whether or not earlier calls are answered. Each line on the standard input asks for the counts since the
previous line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import math
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from bench.asker import Lines
from bench.served import OPTIONS, PREDICT
from paramsync.errors import CallError
from paramsync.rpc import tensor_proto
from paramsync.v1 import serving_pb2

_CHANNELS = 16  # each channel is a connection to one worker
_WARM_UPS = 20
_PATIENCE = 30.0  # seconds after which a call counts as failed: a killed server may never answer
_TOGETHER = 64  # the most late calls that are sent in one turn of the event loop


class Traffic(Lines):
    """The process of this module, started with `--rate`."""

    def __init__(self, address: str, request: Path, *, rate: float) -> None:
        super().__init__("bench.traffic", address, request, "--rate", rate)

    def forget(self) -> None:
        """Start the counts anew. Returns once the process has begun to call. Raises CallError."""
        self._ask_counts()

    def counts(self) -> dict[str, Any]:
        """Return the counts since the last call of this method. Raises CallError, also if nothing was answered."""
        counts = self._ask_counts()
        if not counts["answered"]:
            raise CallError(f"no call was answered: {counts['reasons']}", "UNKNOWN")
        return counts

    def _ask_counts(self) -> dict[str, Any]:
        if not (line := self.ask()):
            raise CallError("the callers have ended", "UNKNOWN")
        counts: dict[str, Any] = json.loads(line)
        return counts


@dataclass(slots=True)
class _Counts:
    """Counts answers. Each output is the number of its version, so that mixed answers can be recognised."""

    open: set[asyncio.Task[None]] = field(default_factory=set)
    answers: Counter[bytes] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, Any]:
        """Parse each distinct answer once, after the calls: all answers of one version are the same bytes."""
        versions, mixed = set(), 0
        for answer, count in self.answers.items():
            response = serving_pb2.PredictResponse.FromString(answer)
            version = response.model_spec.version.value
            versions.add(version)
            values = tensor_proto.to_arrays(response.outputs, "output").values()
            mixed += count * any((array != version).any() for array in values)
        return {
            "answered": self.answers.total(),
            "failed": self.failed.total(),
            "reasons": dict(self.failed),
            "mixed": mixed,
            "versions": max(versions) - min(versions) if versions else 0,
        }


class Callers:
    """The callers of one server, on one event loop."""

    def __init__(self, address: str, request: bytes) -> None:
        channels = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(_CHANNELS)]
        self._calls = [channel.unary_unary(PREDICT, bytes, bytes) for channel in channels]
        self._request = request
        self._counts = _Counts()

    async def warm_up(self) -> None:
        """Make the connections, and the first calls, which are slow."""
        for at in range(_CHANNELS * _WARM_UPS):
            with contextlib.suppress(grpc.aio.AioRpcError):  # a server whose models change may refuse some calls
                await self._calls[at % _CHANNELS](self._request, timeout=_PATIENCE)

    async def at_rate(self, rate: float) -> None:
        """Call at this rate until cancelled, whether or not earlier calls are answered."""
        started = time.perf_counter()
        for at in itertools.count():
            while (early := started + at / rate - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            counts = self._counts
            task = asyncio.ensure_future(self._call(at, counts))
            counts.open.add(task)
            task.add_done_callback(counts.open.discard)
            if not at % _TOGETHER:
                await asyncio.sleep(0)  # other tasks get a turn even if these calls are late

    async def at_once(self, callers: int, seconds: float) -> dict[str, Any]:
        """Let each caller call again after each answer. Returns the counts."""
        self._counts = _Counts()
        end = time.perf_counter() + seconds

        async def repeat(at: int) -> None:
            while time.perf_counter() < end:
                await self._call(at, self._counts)

        await asyncio.gather(*(repeat(at) for at in range(callers)))
        return self._counts.figures()

    async def counts(self) -> dict[str, Any]:
        """Return the counts of the calls since the last time, once all these calls have ended."""
        counts, self._counts = self._counts, _Counts()
        await asyncio.gather(*counts.open)
        return counts.figures()

    async def _call(self, at: int, counts: _Counts) -> None:
        try:
            counts.answers[await self._calls[at % _CHANNELS](self._request, timeout=_PATIENCE)] += 1
        except grpc.aio.AioRpcError as error:
            counts.failed[error.code().name] += 1


async def _call(arguments: argparse.Namespace) -> None:
    callers = Callers(arguments.address, arguments.request.read_bytes())
    await callers.warm_up()
    gc.freeze()
    if arguments.rate is None:
        _say(await callers.at_once(arguments.callers, arguments.seconds))
        return
    calling = asyncio.ensure_future(callers.at_rate(arguments.rate))
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        _say(await callers.counts())
    calling.cancel()


def _say(figures: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(figures)}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.traffic")
    parser.add_argument("address")
    parser.add_argument("request", type=Path)
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="for which they call (default %(default)s)")
    parser.add_argument("--rate", type=float, help="calls a second, which go on until the standard input ends")
    arguments = parser.parse_args()
    if arguments.callers < 1:
        parser.error(f"--callers: expected a number above 0, found {arguments.callers}")
    if arguments.rate is not None and not 0 < arguments.rate < math.inf:
        parser.error(f"--rate: expected a number above 0, found {arguments.rate}")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_call(arguments))


if __name__ == "__main__":
    main()
