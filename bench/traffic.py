"""Callers of a server, as a process: `python -m bench.traffic ADDRESS REQUEST ...` prints what they saw.

So many callers wait for their answers, for `--seconds`, once. With `--rate` calls go on at it, whether or not there are
answers, and for each line on the standard input comes what was seen of those that were due since the line before.
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
import numpy as np

from bench.lines import Lines
from bench.served import PREDICT
from paramsync.errors import CallError
from paramsync.rpc import tensor_proto
from paramsync.v1 import serving_pb2

_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
_CHANNELS = 16  # each is of one worker
_WARM_UPS = 20
_PERCENTILES = (50, 99, 99.9)
_PATIENCE = 30.0  # seconds, after which a call has failed: a server that is gone may leave it without an answer
_TOGETHER = 64  # calls that are late and sent in one turn of the event loop, at most


class Traffic(Lines):
    """The process with `--rate`."""

    def __init__(self, address: str, request: Path, *, rate: float) -> None:
        super().__init__("bench.traffic", address, request, "--rate", rate)

    def forget(self) -> None:
        """What it saw so far does not count. Returns once it calls. Raises CallError."""
        self._told()

    def seen(self) -> dict[str, Any]:
        """What it saw since it was asked before. Raises CallError, also where nothing was answered."""
        found = self._told()
        if not found["answered"]:
            raise CallError(f"no call was answered: {found['reasons']}", "UNKNOWN")
        return found

    def _told(self) -> dict[str, Any]:
        if not (said := self.ask()):
            raise CallError("nobody calls any more", "UNKNOWN")
        found: dict[str, Any] = json.loads(said)
        return found


@dataclass(slots=True)
class Seen:
    """What came back. Every output of a model that is measured with is the number of the version it comes from."""

    since: float
    open: set[asyncio.Task[None]] = field(default_factory=set)
    milliseconds: list[float] = field(default_factory=list)
    answers: Counter[bytes] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def note(self, answer: bytes, seconds: float) -> None:
        """It is looked into later: those of one version are the same bytes, and who calls is not to wait for that."""
        self.milliseconds.append(seconds * 1000)
        self.answers[answer] += 1

    def figures(self, until: float) -> dict[str, Any]:
        times = np.percentile(self.milliseconds, _PERCENTILES) if self.milliseconds else ()
        versions, mixed = set(), 0
        for answer, count in self.answers.items():
            response = serving_pb2.PredictResponse.FromString(answer)
            version = response.model_spec.version.value
            versions.add(version)
            values = tensor_proto.to_arrays(response.outputs, "output").values()
            mixed += count * any((one != version).any() for one in values)
        figures = {
            "answered": len(self.milliseconds),
            "per_second": len(self.milliseconds) / (until - self.since),
            "failed": self.failed.total(),
            "reasons": dict(self.failed),
            "mixed": mixed,
            "versions": max(versions) - min(versions) if versions else 0,
        }
        percentiles = zip(_PERCENTILES, times, strict=bool(len(times)))
        return figures | {f"p{percentile:g}_ms": float(one) for percentile, one in percentiles}


class Callers:
    """Those of one server, on one event loop."""

    def __init__(self, address: str, request: bytes) -> None:
        channels = [grpc.aio.insecure_channel(address, options=_OPTIONS) for _ in range(_CHANNELS)]
        self._calls = [one.unary_unary(PREDICT, bytes, bytes) for one in channels]
        self._request = request
        self._seen = Seen(time.perf_counter())

    async def _one(self, at: int, due: float, seen: Seen) -> None:
        """Its time counts from when it was due, however late it could be sent."""
        try:
            answer = await self._calls[at % _CHANNELS](self._request, timeout=_PATIENCE)
        except grpc.aio.AioRpcError as error:
            seen.failed[error.code().name] += 1
            return
        seen.note(answer, time.perf_counter() - due)

    async def warm_up(self) -> None:
        """Connections are made, and the first calls are slow: neither is what anybody asks about."""
        for at in range(_CHANNELS * _WARM_UPS):
            with contextlib.suppress(grpc.aio.AioRpcError):  # a server that is told anew what to serve may fail some
                await self._calls[at % _CHANNELS](self._request, timeout=_PATIENCE)

    async def at_rate(self, rate: float) -> None:
        """Calls that come whether or not those before were answered, and go on until this is cancelled."""
        started = time.perf_counter()
        for at in itertools.count():
            due = started + at / rate
            while (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            seen = self._seen
            task = asyncio.ensure_future(self._one(at, due, seen))
            seen.open.add(task)
            task.add_done_callback(seen.open.discard)
            if not at % _TOGETHER:
                await asyncio.sleep(0)  # others have a turn, however late these are

    async def at_once(self, count: int, seconds: float) -> dict[str, Any]:
        """So many callers, each of which calls again when it is answered; and what they saw."""
        self._seen = Seen(time.perf_counter())
        end = self._seen.since + seconds

        async def again(at: int) -> None:
            while (now := time.perf_counter()) < end:
                await self._one(at, now, self._seen)

        await asyncio.gather(*(again(at) for at in range(count)))
        return await self.seen()

    async def seen(self) -> dict[str, Any]:
        """What was seen since this was asked for before, when all of it is there."""
        until = time.perf_counter()
        seen, self._seen = self._seen, Seen(until)
        await asyncio.gather(*seen.open)
        return seen.figures(until)


async def _call(found: argparse.Namespace) -> None:
    callers = Callers(found.address, found.request.read_bytes())
    await callers.warm_up()
    gc.freeze()
    if found.rate is None:
        _say(await callers.at_once(found.callers, found.seconds))
        return
    calling = asyncio.ensure_future(callers.at_rate(found.rate))
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        _say(await callers.seen())
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
    found = parser.parse_args()
    if found.callers < 1:
        parser.error(f"--callers: expected a number above 0, found {found.callers}")
    if found.rate is not None and not 0 < found.rate < math.inf:
        parser.error(f"--rate: expected a number above 0, found {found.rate}")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_call(found))


if __name__ == "__main__":
    main()
