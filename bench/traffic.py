"""Callers of a server, as a process: `python -m bench.traffic ADDRESS REQUEST ...` prints what they saw."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np

from bench.served import PREDICT
from paramsync import wire
from paramsync.v1 import serving_pb2

_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
_CHANNELS = 4
_WARM_UPS = 20
_PERCENTILES = (50, 99, 99.9)


@dataclass(slots=True)
class Seen:
    """What came back. Every output of a model that is measured with is the number of the version it comes from."""

    milliseconds: list[float] = field(default_factory=list)
    versions: Counter[int] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    mixed: int = 0

    def note(self, answer: bytes, seconds: float) -> None:
        self.milliseconds.append(seconds * 1000)
        response = serving_pb2.PredictResponse.FromString(answer)
        version = response.model_spec.version.value
        self.versions[version] += 1
        values = (wire.to_arrays(response.outputs, "output")).values()
        self.mixed += any((one != version).any() for one in values)


class Callers:
    """Those of one server, on one event loop."""

    def __init__(self, address: str, request: bytes) -> None:
        channels = [grpc.aio.insecure_channel(address, options=_OPTIONS) for _ in range(_CHANNELS)]
        self._calls = [one.unary_unary(PREDICT, bytes, bytes) for one in channels]
        self._request = request
        self.seen = Seen()

    async def one(self, at: int, due: float) -> None:
        """Its time counts from when it was due, however late it could be sent."""
        try:
            answer = await self._calls[at % _CHANNELS](self._request)
        except grpc.aio.AioRpcError as error:
            self.seen.failed[error.code().name] += 1
            return
        self.seen.note(answer, time.perf_counter() - due)

    async def warm_up(self) -> None:
        """Connections are made, and the first calls are slow: neither is what anybody asks about."""
        for at in range(_CHANNELS * _WARM_UPS):
            with contextlib.suppress(grpc.aio.AioRpcError):  # a server that is told anew what to serve may fail some
                await self._calls[at % _CHANNELS](self._request)

    async def at_rate(self, rate: float, seconds: float) -> None:
        """Calls that come whether or not those before were answered."""
        started = time.perf_counter()
        open_calls: set[asyncio.Task[None]] = set()
        for at in range(int(rate * seconds)):
            due = started + at / rate
            while (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            task = asyncio.ensure_future(self.one(at, due))
            open_calls.add(task)
            task.add_done_callback(open_calls.discard)
            await asyncio.sleep(0)
        await asyncio.gather(*open_calls)

    async def at_once(self, count: int, seconds: float) -> None:
        """So many callers, each of which calls again when it is answered."""
        end = time.perf_counter() + seconds

        async def again(at: int) -> None:
            while (now := time.perf_counter()) < end:
                await self.one(at, now)

        await asyncio.gather(*(again(at) for at in range(count)))


async def _call(found: argparse.Namespace) -> dict[str, object]:
    callers = Callers(found.address, found.request.read_bytes())
    await callers.warm_up()
    gc.freeze()
    started = time.perf_counter()
    if found.rate:
        await callers.at_rate(found.rate, found.seconds)
    else:
        await callers.at_once(found.callers, found.seconds)
    seconds, seen = time.perf_counter() - started, callers.seen
    times = np.percentile(seen.milliseconds, _PERCENTILES) if seen.milliseconds else ()
    return {
        "answered": len(seen.milliseconds),
        "per_second": len(seen.milliseconds) / seconds,
        "failed": seen.failed.total(),
        "reasons": dict(seen.failed),
        "mixed": seen.mixed,
        "versions": len(seen.versions),
        **{f"p{percentile:g}_ms": float(one) for percentile, one in zip(_PERCENTILES, times, strict=bool(len(times)))},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.traffic")
    parser.add_argument("address")
    parser.add_argument("request", type=Path)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--rate", type=float)
    how.add_argument("--callers", type=int)
    parser.add_argument("--seconds", type=float, required=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdout.write(json.dumps(asyncio.run(_call(parser.parse_args()))) + "\n")


if __name__ == "__main__":
    main()
