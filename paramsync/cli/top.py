"""`paramsync top`: how much each model answers and how fast, and what the processes that answer take, every second."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from paramsync.cli.fitted_table import Cells, fitted
from paramsync.cli.formatting import NOTHING, console, duration, plain, redraws, size, to_json
from paramsync.cli.overview import BAD, DOUBTFUL, GOOD, behind
from paramsync.cli.process import check_reader
from paramsync.cli.servers import connected, short
from paramsync.cli.watched import Last, Watched
from paramsync.errors import RequestError
from paramsync.host.files import line
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb

_SECONDS = 1.0  # between two samples
_SAMPLES = 20  # that a sparkline shows
_LEVELS = "▁▂▃▄▅▆▇█"
_DISPENSABLE = ("in memory", "refused", "lag", "p99 so far")
_STATES = {pb.WorkerStatus.ANSWERING: GOOD, pb.WorkerStatus.STARTING: DOUBTFUL, pb.WorkerStatus.LEAVING: DOUBTFUL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What a model did between two samples. Latencies are None where nothing was answered."""

    answered: float  # a second
    refused: float  # a second
    p50: float | None
    p99: float | None


def rate(before: pb.ModelLoad, after: pb.ModelLoad, seconds: float) -> Rate:
    """From two counts. Where a worker has ended meanwhile they fall; nothing is known of what it counted."""
    pairs = zip_longest(after.latencies, before.latencies, fillvalue=0)
    counts = [max(0, mine - theirs) for mine, theirs in pairs]
    return Rate(
        answered=max(0, after.answered - before.answered) / seconds,
        refused=max(0, after.refused - before.refused) / seconds,
        p50=quantile(after.bounds, counts, 0.5),
        p99=quantile(after.bounds, counts, 0.99),
    )


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """As Prometheus' histogram_quantile: evenly spread within a bucket; None where nothing was counted."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    below = 0.0
    for (low, high), count in zip(pairwise([0.0, *bounds]), counts, strict=False):
        if below + count >= wanted:
            return low + (high - low) * (wanted - below) / count
        below += count
    return bounds[-1]  # or more


def sparkline(values: Sequence[float | None]) -> str:
    """Each as a share of the greatest; a gap where there is none."""
    most = max((value for value in values if value is not None), default=0.0)
    shares = (None if value is None else value / most if most else 0.0 for value in values)
    return "".join(" " if share is None else _LEVELS[round(share * (len(_LEVELS) - 1))] for share in shares)


@dataclass(slots=True)
class ModelSamples:
    """One model of one server, as of the last samples."""

    status: pb.ModelStatus
    load: pb.ModelLoad
    at: float
    rate: Rate | None = None
    p99s: deque[float | None] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def take(self, status: pb.ModelStatus, load: pb.ModelLoad, at: float) -> None:
        self.rate = rate(self.load, load, at - self.at)
        self.p99s.append(self.rate.p99)
        self.status, self.load, self.at = status, load, at


class ServerSamples:
    """What one server told, sample by sample."""

    def __init__(self, inferencer: Inferencer, model: str, news: threading.Event) -> None:
        self.address = inferencer.address
        ask = partial(inferencer.report, model, load=True)
        self.watched = Watched(ask, partial(inferencer.watch, model), news, poll_seconds=_SECONDS)
        self.models: dict[str, ModelSamples] = {}
        self._taken = 0.0

    @property
    def last(self) -> Last[pb.GetStatusResponse]:
        return self.watched.last

    def run_once(self) -> None:
        """Take in what was answered since; samples that are close together are one."""
        last = self.last
        if last.answer is None or last.at - self._taken < _SECONDS / 2:
            return
        self._taken = last.at
        loads = {load.model: load for load in last.answer.loads}
        models = {}
        for status in last.answer.models:
            load = loads.get(status.model, pb.ModelLoad(model=status.model))
            model = self.models.get(status.model)
            if model is None:
                model = ModelSamples(status, load, last.at)
            else:
                model.take(status, load, last.at)
            models[status.model] = model
        self.models = models


def run(arguments: Namespace) -> bool:
    """Until Ctrl-C, or for so many seconds. Raises RequestError where the model is not known."""
    news = threading.Event()
    until = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    with connected(arguments) as inferencers, contextlib.ExitStack() as stack:
        servers = [ServerSamples(inferencer, arguments.model, news) for inferencer in inferencers]
        for server in servers:
            stack.callback(server.watched.close)
            server.watched.start()
        show = stack.enter_context(_shown(arguments))
        while until is None or time.monotonic() < until:
            news.wait(_SECONDS)
            news.clear()
            check_reader()
            for server in servers:
                if isinstance(server.last.error, RequestError):
                    raise server.last.error
                server.run_once()
            if all(server.last.at or server.last.error for server in servers):
                show(servers)
    return all(server.last.error is None for server in servers)


@contextlib.contextmanager
def _shown(arguments: Namespace) -> Iterator[Callable[[Sequence[ServerSamples]], Any]]:
    screen = console()
    if arguments.json:
        yield _every_second(_print_json)
    elif redraws(screen):
        with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda servers: live.update(Picture(servers), refresh=True)
    else:
        yield _every_second(lambda servers: _print_lines(screen, servers))


def _every_second(show: Callable[[Sequence[ServerSamples]], None]) -> Callable[[Sequence[ServerSamples]], None]:
    """Where nothing is drawn over, one sample is enough for a second."""
    shown: dict[str, float] = {}

    def show_once(servers: Sequence[ServerSamples]) -> None:
        now = time.monotonic()
        if now - shown.get("at", 0.0) >= _SECONDS * 0.9:
            shown["at"] = now
            show(servers)

    return show_once


@dataclass(frozen=True)
class Picture:
    servers: Sequence[ServerSamples]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        several = len(self.servers) > 1
        width = options.max_width
        waiting = sum(server.last.answer.waiting for server in self.servers if server.last.answer is not None)
        yield Text.assemble(("paramsync top", "bold"), f"  {time.strftime('%H:%M:%S')}  {waiting} requests wait")
        yield ""
        rows = [row for server in self.servers for row in _models(server, several=several)]
        if rows:
            yield from fitted(rows, width, dispensable=_DISPENSABLE)
        workers = [row for server in self.servers for row in _workers(server, several=several)]
        if workers:
            yield ""
            yield from fitted(workers, width, dispensable=("shared", "since"))
        for server in self.servers:
            if server.last.error is not None and not several:
                yield Text(line(f"{server.address}: {short(server.last.error, server.address)}"), BAD)


def _models(server: ServerSamples, *, several: bool) -> Iterator[Cells]:
    name = {"server": Text(server.address)} if several else {}
    if server.last.error is not None:
        if several:
            yield {**name, "": Text(line(short(server.last.error, server.address)), BAD)}
        return
    seconds = time.monotonic() - server.last.at
    for model in server.models.values():
        status, now = model.status, model.rate
        yield {
            **name,
            "model": Text(line(status.model)),
            "version": Text(str(status.serving.number) if status.HasField("serving") else NOTHING),
            "rate": Text(NOTHING if now is None else f"{now.answered:.0f}/s"),
            "p50": _latency(None if now is None else now.p50),
            "p99": _latency(None if now is None else now.p99),
            "p99 so far": Text(sparkline(model.p99s).ljust(_SAMPLES), GOOD),
            "refused": Text(
                f"{now.refused:.0f}/s" if now and now.refused else NOTHING, BAD if now and now.refused else ""
            ),
            "lag": Text(behind(status, seconds)),
            "in memory": Text(str(len(status.resident))),
        }


def _latency(seconds: float | None) -> Text:
    if seconds is None:
        return Text(NOTHING)
    return Text(f"{seconds * 1000:.1f} ms" if seconds < 0.01 else duration(seconds))


def _workers(server: ServerSamples, *, several: bool) -> Iterator[Cells]:
    name = {"server": Text(server.address)} if several else {}
    for worker in server.last.answer.workers if server.last.answer is not None and server.last.error is None else ():
        state = pb.WorkerStatus.State.Name(worker.state).lower()
        yield {
            **name,
            "worker": Text(str(worker.number)),
            "pid": Text(str(worker.pid) if worker.pid else NOTHING),
            "state": Text(state, _STATES.get(worker.state, BAD)),
            "memory": Text(size(worker.private_bytes)),
            "shared": Text(size(worker.resident_bytes - min(worker.private_bytes, worker.resident_bytes))),
            "restarts": Text(str(worker.restarts), DOUBTFUL if worker.restarts else ""),
            "since": Text(f"{duration(max(0.0, time.time() - worker.since))}"),
        }


def _print_lines(screen: Console, servers: Sequence[ServerSamples]) -> None:
    at = time.strftime("%H:%M:%S")
    for server in servers:
        who = f"{server.address} " if len(servers) > 1 else ""
        if server.last.error is not None:
            screen.print(line(f"{at} {server.address}: {short(server.last.error, server.address)}"), soft_wrap=True)
            continue
        for cells in _models(server, several=False):
            facts = [f"{name} {text}" for name, text in cells.items() if name not in ("model", "p99 so far")]
            screen.print(line(f"{at} {who}{cells['model']}: {', '.join(facts)}"), soft_wrap=True)
    screen.file.flush()


def _print_json(servers: Sequence[ServerSamples]) -> None:
    for server in servers:
        answer = server.last.answer if server.last.error is None else None
        sys.stdout.write(
            to_json(
                {
                    "server": server.address,
                    "error": None if server.last.error is None else str(server.last.error),
                    "waiting": None if answer is None else answer.waiting,
                    "models": None if answer is None else [_model_json(model) for model in server.models.values()],
                    "workers": None if answer is None else [plain(worker) for worker in answer.workers],
                }
            )
        )
    sys.stdout.flush()


def _model_json(model: ModelSamples) -> dict[str, object]:
    now = model.rate
    return {
        "model": model.status.model,
        "version": model.status.serving.number if model.status.HasField("serving") else None,
        "answered_per_second": None if now is None else round(now.answered, 2),
        "refused_per_second": None if now is None else round(now.refused, 2),
        "p50_seconds": None if now is None else now.p50,
        "p99_seconds": None if now is None else now.p99,
        "lag_seconds": model.status.lag_seconds if model.status.HasField("lag_seconds") else None,
        "lag_steps": model.status.lag_steps if model.status.HasField("lag_steps") else None,
        "resident": list(model.status.resident),
    }
