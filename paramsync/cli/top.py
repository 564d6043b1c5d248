"""`paramsync top`: shows requests and latencies of each model, and state and memory of each worker, every second."""

from __future__ import annotations

import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from paramsync.cli.formatting import NOTHING, duration, size
from paramsync.cli.live import Polled, show
from paramsync.cli.overview import BAD, DOUBTFUL, GOOD, FittedTable, behind
from paramsync.cli.servers import connected
from paramsync.host.files import line
from paramsync.program.quantiles import quantile
from paramsync.rpc.client import Inferencer, short
from paramsync.rpc.server import plain
from paramsync.v1 import sync_pb2 as pb

_SECONDS = 1.0  # the time between two samples
_SAMPLES = 20  # samples in a sparkline
_LEVELS = "▁▂▃▄▅▆▇█"
_DISPENSABLE = ("in memory", "refused", "lag", "p99 so far")
_STATES = {pb.WorkerStatus.ANSWERING: GOOD, pb.WorkerStatus.STARTING: DOUBTFUL, pb.WorkerStatus.LEAVING: DOUBTFUL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The requests of a model between two samples. Latencies are None if no request was answered."""

    answered: float  # requests per second
    refused: float  # requests per second
    p50: float | None
    p99: float | None


def rate(before: pb.ModelLoad, after: pb.ModelLoad, seconds: float) -> Rate:
    """Return the rate from the counts of two samples. If a worker ended between them, its requests are missing."""
    pairs = zip_longest(after.latencies, before.latencies, fillvalue=0)
    counts = [max(0, late - early) for late, early in pairs]
    return Rate(
        answered=max(0, after.answered - before.answered) / seconds,
        refused=max(0, after.refused - before.refused) / seconds,
        p50=quantile(after.bounds, counts, 0.5),
        p99=quantile(after.bounds, counts, 0.99),
    )


def sparkline(values: Sequence[float | None]) -> str:
    """Return a bar for each value, scaled to the greatest value; a gap for None."""
    most = max((value for value in values if value is not None), default=0.0)
    shares = (None if value is None else value / most if most else 0.0 for value in values)
    return "".join(" " if share is None else _LEVELS[round(share * (len(_LEVELS) - 1))] for share in shares)


@dataclass(slots=True)
class ModelSamples:
    """The last samples of one model at one server."""

    status: pb.ModelStatus
    load: pb.ModelLoad
    rate: Rate | None = None
    p99s: deque[float | None] = field(default_factory=lambda: deque(maxlen=_SAMPLES))


class ServerSamples:
    """Turns the answers of one server into samples of its models."""

    def __init__(self, inferencer: Inferencer, model: str) -> None:
        self.address = inferencer.address
        self.polled = Polled(partial(inferencer.report, model, load=True), _SECONDS)
        self.models: dict[str, ModelSamples] = {}
        self._at = 0.0

    def run_once(self) -> None:
        """Add the last answer to the samples, unless it was added already."""
        last = self.polled.last
        if last.answer is None or last.at == self._at:
            return
        loads = {load.model: load for load in last.answer.loads}
        models = {}
        for status in last.answer.models:
            load = loads.get(status.model, pb.ModelLoad(model=status.model))
            samples = models[status.model] = ModelSamples(status, load)
            if before := self.models.get(status.model):
                samples.rate = rate(before.load, load, last.at - self._at)
                samples.p99s = before.p99s
                samples.p99s.append(samples.rate.p99)
        self._at, self.models = last.at, models


def run(arguments: Namespace) -> bool:
    """Show the view until Ctrl-C or the end of `--seconds`. Raises RequestError if the model is not known."""
    until = float("inf") if arguments.seconds is None else time.monotonic() + arguments.seconds
    with connected(arguments) as inferencers:
        top = Top([ServerSamples(inferencer, arguments.model) for inferencer in inferencers])
        programs = [server.polled for server in top.servers]
        show(top, programs, seconds=_SECONDS, json=arguments.json, goes_on=lambda: time.monotonic() < until)
    return all(program.last.error is None for program in programs)


@dataclass(frozen=True)
class Top:
    """The view of all servers."""

    servers: Sequence[ServerSamples]

    def drawn(self) -> RenderableType:
        self._take()
        several = len(self.servers) > 1
        answers = [server.polled.last.answer for server in self.servers]
        waiting = sum(answer.waiting for answer in answers if answer is not None)
        parts: list[RenderableType] = [
            Text.assemble(("paramsync top", "bold"), f"  {time.strftime('%H:%M:%S')}  {waiting} requests wait"),
            "",
        ]
        for rows, dispensable in (
            ([row for server in self.servers for row in _models(server, several=several)], _DISPENSABLE),
            ([row for server in self.servers for row in _workers(server, several=several)], ("shared", "since")),
        ):
            if rows:
                parts += [FittedTable(rows, dispensable), ""]
        for server in self.servers:
            if server.polled.last.error is not None:
                parts.append(Text(line(f"{server.address}: {_error(server)}"), BAD))
        return Group(*parts)

    def lines(self) -> Iterator[str]:
        self._take()
        at = time.strftime("%H:%M:%S")
        for server in self.servers:
            if server.polled.last.error is not None:
                yield f"{at} {server.address}: {_error(server)}"
            who = f"{server.address} " if len(self.servers) > 1 else ""
            for cells in _models(server, several=False):
                facts = [f"{name} {text}" for name, text in cells.items() if name not in ("model", "p99 so far")]
                yield f"{at} {who}{cells['model']}: {', '.join(facts)}"

    def objects(self) -> Iterator[object]:
        self._take()
        for server in self.servers:
            last = server.polled.last
            answer = last.answer if last.error is None else None
            yield {
                "server": server.address,
                "error": None if last.error is None else str(last.error),
                "waiting": None if answer is None else answer.waiting,
                "models": None if answer is None else [_model_json(model) for model in server.models.values()],
                "workers": None if answer is None else [plain(worker) for worker in answer.workers],
            }

    def _take(self) -> None:
        for server in self.servers:
            server.run_once()


def _error(server: ServerSamples) -> str:
    error = server.polled.last.error
    return "" if error is None else short(error, server.address)


def _models(server: ServerSamples, *, several: bool) -> Iterator[Mapping[str, Text]]:
    last = server.polled.last
    for model in server.models.values() if last.error is None else ():
        status, now = model.status, model.rate
        refused = now is not None and now.refused > 0
        yield {
            **({"server": Text(server.address)} if several else {}),
            "model": Text(line(status.model)),
            "version": Text(str(status.serving.number) if status.HasField("serving") else NOTHING),
            "rate": Text(NOTHING if now is None else f"{now.answered:.0f}/s"),
            "p50": _latency(None if now is None else now.p50),
            "p99": _latency(None if now is None else now.p99),
            "p99 so far": Text(sparkline(model.p99s).ljust(_SAMPLES), GOOD),
            "refused": Text(f"{now.refused:.0f}/s" if now and refused else NOTHING, BAD if refused else ""),
            "lag": Text(behind(status, last.age)),
            "in memory": Text(str(len(status.resident))),
        }


def _latency(seconds: float | None) -> Text:
    if seconds is None:
        return Text(NOTHING)
    return Text(f"{seconds * 1000:.1f} ms" if seconds < 0.01 else duration(seconds))


def _workers(server: ServerSamples, *, several: bool) -> Iterator[Mapping[str, Text]]:
    last = server.polled.last
    for worker in last.answer.workers if last.answer is not None and last.error is None else ():
        state = pb.WorkerStatus.State.Name(worker.state).lower()
        yield {
            **({"server": Text(server.address)} if several else {}),
            "worker": Text(str(worker.number)),
            "pid": Text(str(worker.pid) if worker.pid else NOTHING),
            "state": Text(state, _STATES.get(worker.state, BAD)),
            "memory": Text(size(worker.private_bytes)),
            "shared": Text(size(max(0, worker.resident_bytes - worker.private_bytes))),
            "restarts": Text(str(worker.restarts), DOUBTFUL if worker.restarts else ""),
            "since": Text(f"{duration(max(0.0, time.time() - worker.since))}"),
        }


def _model_json(model: ModelSamples) -> dict[str, Any]:
    status, now = plain(model.status), model.rate
    return {
        "model": status["model"],
        "version": status["serving"] and status["serving"]["number"],
        "answered_per_second": None if now is None else round(now.answered, 2),
        "refused_per_second": None if now is None else round(now.refused, 2),
        "p50_seconds": None if now is None else now.p50,
        "p99_seconds": None if now is None else now.p99,
        "lag_seconds": status["lag_seconds"],
        "lag_steps": status["lag_steps"],
        "resident": status["resident"],
    }
