"""Callers that repeat one request, as processes: they parse nothing, so that they are never what is measured."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
)
_LEAD = 0.25  # seconds until all begin at once
_WARM_UPS = 20
_CHANNELS = 8  # of each process: a server's worker has some of them


@dataclass(frozen=True, slots=True)
class Task:
    """What to call, how many at a time, and for how long from a moment of the wall's clock on."""

    address: str
    method: str
    request: str
    callers: int
    seconds: float
    begin: float = 0.0
    roots: str = ""
    """A file of who signs the server's certificate; empty: in plain."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Answers a second, and how long each took."""

    rate: float
    microseconds: Sequence[float]

    def percentile(self, percent: float) -> float:
        ordered = sorted(self.microseconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class Callers:
    """So many processes."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def call(self, task: Task) -> Seen:
        """By as many processes as have something to do."""
        count = min(len(self._processes), task.callers)
        begin = time.time() + _LEAD
        for at, one in enumerate(self._processes[:count]):
            share = task.callers // count + (at < task.callers % count)
            print(json.dumps(asdict(task) | {"callers": share, "begin": begin}), file=one.stdin, flush=True)
        answers = [json.loads(one.stdout.readline()) for one in self._processes[:count] if one.stdout]
        return Seen(
            sum(len(one["microseconds"]) / one["seconds"] for one in answers),
            [taken for one in answers for taken in one["microseconds"]],
        )


@contextmanager
def callers(count: int) -> Iterator[Callers]:
    with ExitStack() as stack:
        command = [sys.executable, "-m", "bench.callers"]
        processes = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(count)
        ]
        try:
            yield Callers(processes)
        finally:
            for one in processes:
                one.kill()


def _channel(task: Task) -> grpc.aio.Channel:
    if not task.roots:
        return grpc.aio.insecure_channel(task.address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(Path(task.roots).read_bytes())
    return grpc.aio.secure_channel(task.address, credentials, options=_OPTIONS)


async def _call(task: Task) -> dict[str, object]:
    request = Path(task.request).read_bytes()
    taken: list[float] = []
    async with AsyncExitStack() as stack:
        calls = []
        for _ in range(min(_CHANNELS, task.callers)):
            channel = await stack.enter_async_context(_channel(task))
            calls.append(channel.unary_unary(task.method, bytes, bytes))
        for call in calls:
            for _ in range(_WARM_UPS):
                await call(request)
        await asyncio.sleep(max(0.0, task.begin - time.time()))
        began = time.perf_counter()

        async def again(call: Callable[[bytes], Awaitable[bytes]]) -> None:
            while (now := time.perf_counter()) < began + task.seconds:
                await call(request)
                taken.append((time.perf_counter() - now) * 1e6)

        await asyncio.gather(*(again(calls[at % len(calls)]) for at in range(task.callers)))
        return {"seconds": time.perf_counter() - began, "microseconds": taken}


def main() -> None:
    for line in sys.stdin:
        sys.stdout.write(json.dumps(asyncio.run(_call(Task(**json.loads(line))))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
