"""`paramsync status --watch`: the status, drawn again in place whenever it changes; elsewhere a line a change."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from rich.console import Console
from rich.live import Live
from rich.text import Text

from paramsync.cli.credentials import credentials
from paramsync.cli.formatting import console, duration, redraws, to_json
from paramsync.cli.overview import BAD, StatusRow, StatusTable, behind, publishing, rows, workers
from paramsync.cli.process import check_reader
from paramsync.cli.servers import addresses, connected, report, short, trainer
from paramsync.cli.watched import Last, Watched
from paramsync.errors import CallError, RequestError
from paramsync.host.files import line
from paramsync.rpc.client import Inferencer, Trainer
from paramsync.v1 import sync_pb2 as pb

_REDRAW_SECONDS = 0.5  # ages grow where nothing happens
_TRAINER_SECONDS = 1.0  # steps are no events


def watch(arguments: Namespace) -> NoReturn:
    """Until Ctrl-C. Raises RequestError where the model is not known."""
    news = threading.Event()
    at = addresses(arguments)
    where, expected = trainer(arguments, at)
    with (
        connected(arguments) as inferencers,
        Trainer(where, credentials(arguments)) as publisher,
        contextlib.ExitStack() as stack,
    ):
        training = Watched(publisher.status, publisher.watch, news, poll_seconds=_TRAINER_SECONDS)
        servers = [_watched(inferencer, arguments.model, news) for inferencer in inferencers]
        programs: list[Watched[Any]] = [training, *servers]
        for program in programs:
            stack.callback(program.close)
            program.start()
        show = stack.enter_context(_shown(arguments, where, at, expected=expected))
        while True:
            news.wait(_REDRAW_SECONDS)
            news.clear()
            check_reader()
            lasts = [server.last for server in servers]
            for last in lasts:
                if isinstance(last.error, RequestError):
                    raise last.error
            if all(program.last.at or program.last.error for program in programs):  # all have been asked
                show(training.last, lasts)


def _watched(inferencer: Inferencer, model: str, news: threading.Event) -> Watched[pb.GetStatusResponse]:
    return Watched(partial(inferencer.report, model), partial(inferencer.watch, model), news)


@contextlib.contextmanager
def _shown(arguments: Namespace, where: str, servers: Sequence[str], *, expected: bool) -> Iterator[Any]:
    """How to show what all said last. The trainer is at `where`, and its absence is told where it is `expected`."""
    screen = console()
    if arguments.json:
        yield _Objects(where, servers).show
    elif redraws(screen):
        with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda training, lasts: live.update(
                _overview(training, servers, lasts, expected=expected), refresh=True
            )
    else:
        yield _Lines(screen, servers).show


def _overview(
    training: Last[pb.PublisherStatus],
    servers: Sequence[str],
    lasts: Sequence[Last[pb.GetStatusResponse]],
    *,
    expected: bool,
) -> StatusTable:
    """A server that is lost keeps the rows it had; below is since when, and why."""
    now = time.monotonic()
    shown: list[StatusRow] = []
    notes = workers(
        {address: last.answer for address, last in zip(servers, lasts, strict=True) if last.answer}, time.time()
    )
    for address, last in zip(servers, lasts, strict=True):
        if last.answer is not None:
            shown += rows(address, last.answer, seconds=now - last.at)
        elif isinstance(last.error, CallError) and len(servers) > 1:
            shown += rows(address, last.error)
        if last.error is not None:
            text = f"{address} lost {duration(now - last.lost_at)} ago: {short(last.error, address)}"
            notes.append(Text(line(text), BAD))
    if training.error is not None and (expected or training.answer is not None):
        notes.append(Text(line(str(training.error)), BAD))
    published = training.answer if training.error is None else None
    return StatusTable(shown, time.time(), trainer=published, several=len(servers) > 1, notes=notes)


class _Lines:
    """A line for every model that is another than before, for every server that is lost, and that is back."""

    def __init__(self, screen: Console, servers: Sequence[str]) -> None:
        self._screen = screen
        self._servers = servers
        self._said: dict[str, str] = {}

    def show(self, training: Last[pb.PublisherStatus], lasts: Sequence[Last[pb.GetStatusResponse]]) -> None:
        for address, last in zip(self._servers, lasts, strict=True):
            if last.error is not None:
                self._say(address, f"lost: {short(last.error, address)}")
                continue
            if address in self._said:
                self._say(address, "answers again")
            several = f"{address} " if len(self._servers) > 1 else ""
            for model in _models(last):
                self._say(f"{several}{model.model}", _sentence(model), known=_essence(model))

    def _say(self, who: str, what: str, *, known: str = "") -> None:
        if self._said.get(who) != (known or what):
            self._said[who] = known or what
            at = time.strftime("%H:%M:%S")
            self._screen.print(line(f"{at} {who}: {what}"), soft_wrap=True)
            self._screen.file.flush()  # whoever reads waits for each


def _models(last: Last[pb.GetStatusResponse]) -> Sequence[pb.ModelStatus]:
    return () if last.answer is None else last.answer.models


def _essence(model: pb.ModelStatus) -> str:
    """What makes a line worth its place: not how old everything is."""
    refused = [quarantined.number for quarantined in model.quarantined]
    pinned = model.pinned if model.HasField("pinned") else None
    return repr((model.state, model.serving.number, pinned, refused, model.reason, model.publisher))


def _sentence(model: pb.ModelStatus) -> str:
    serving = f"version {model.serving.number} serves" if model.HasField("serving") else "no version serves"
    parts = [serving + (", pinned" if model.HasField("pinned") else ""), behind(model)]
    parts += (
        [publishing(model, time.time())] if model.publisher in (pb.ModelStatus.FINISHED, pb.ModelStatus.DIED) else []
    )
    parts += [f"version {refused.number} is refused: {refused.reason}" for refused in model.quarantined[-1:]]
    if model.reason:
        parts.append(model.reason if model.HasField("serving") else f"waits for a version: {model.reason}")
    return "; ".join(parts)


class _Objects:
    """The whole status as one JSON object a line, whenever anything but an age is another."""

    def __init__(self, trainer: str, servers: Sequence[str]) -> None:
        self._trainer = trainer
        self._servers = servers
        self._said: Any = None

    def show(self, training: Last[pb.PublisherStatus], lasts: Sequence[Last[pb.GetStatusResponse]]) -> None:
        essence = [(str(last.error or ""), [] if last.error else list(map(_essence, _models(last)))) for last in lasts]
        if essence != self._said:
            self._said = essence
            told = [last.error or last.answer for last in lasts]
            publisher: Any = training.error or training.answer
            sys.stdout.write(to_json(report(self._trainer, publisher, self._servers, told)))
            sys.stdout.flush()
