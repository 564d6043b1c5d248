"""`paramsync status`: what is trained, published and served, and how far apart they are."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.text import Text

from paramsync.cli import formatting
from paramsync.cli.credentials import credentials
from paramsync.cli.formatting import NOTHING, ago, console, duration, plain, to_json
from paramsync.cli.process import complain
from paramsync.errors import CallError
from paramsync.host.files import harmless, line
from paramsync.rpc.client import Inferencer, Trainer
from paramsync.v1 import sync_pb2 as pb

_STATES = {pb.ModelStatus.SERVING: "green", pb.ModelStatus.WAITING: "yellow", pb.ModelStatus.DRAINING: "yellow"}
_UNBOUNDED = 10_000  # columns
Answer = TypeVar("Answer")


def run(arguments: Namespace) -> bool:
    shown = credentials(arguments)
    with Trainer(arguments.trainer, shown) as trainer, Inferencer(arguments.inferencer, shown) as inferencer:
        publisher, no_trainer = _ask(trainer.status)
        served, no_inferencer = _ask(lambda: inferencer.report(arguments.model))
    models = None if served is None else served.models
    if arguments.json:
        report = {
            "trainer": _answer(arguments.trainer, no_trainer, status=publisher and plain(publisher)),
            "inferencer": _answer(
                arguments.inferencer,
                no_inferencer,
                models=None if models is None else [plain(model) for model in models],
                workers=None if served is None else [plain(worker) for worker in served.workers],
            ),
        }
        sys.stdout.write(to_json(report))
    else:
        screen, now = console(), time.time()
        if publisher is not None:
            screen.print(_trainer(publisher, now))
        if models is not None:
            screen.print(_models(models, now) if models else "no model is served")
        if served is not None and served.workers:
            screen.print(Text(line(_workers(served.workers))))
        screen.file.flush()
        for missing in filter(None, (no_trainer, no_inferencer)):
            complain(f"paramsync status: {line(missing)}")
    return models is not None


def _trainer(status: pb.PublisherStatus, now: float) -> RenderableType:
    facts = {
        "trainer": pb.PublisherStatus.State.Name(status.state).lower(),
        "device": status.device,
        "step": f"{status.step}/{status.total_steps}" if status.HasField("total_steps") else str(status.step),
        "loss": f"{status.loss:.4f}" if status.HasField("loss") else NOTHING,
        "steps/s": f"{status.steps_per_second:.1f}",
        "published": _published(status.published, now) if status.HasField("published") else NOTHING,
        "stall": _stall(status),
        "skipped": str(status.skipped),
    }
    if status.refused:
        facts["refused"] = str(status.refused)
    notes = [f"last error: {status.last_error}"] if status.last_error else []
    notes += [f"held back: {status.held_back}"] if status.held_back else []
    notes += [f"training state: last error: {status.state_error}"] if status.state_error else []
    return _Facts((facts,), notes=notes)


def _workers(workers: Sequence[pb.WorkerStatus]) -> str:
    answering = [worker for worker in workers if worker.state == pb.WorkerStatus.ANSWERING]
    private = sum(worker.private_bytes for worker in workers)
    return f"workers: {len(answering)} answer, {private / 1e6:.0f} MB of their own, {_restarts(workers)}"


def _restarts(workers: Sequence[pb.WorkerStatus]) -> str:
    count = sum({worker.number: worker.restarts for worker in workers}.values())
    return "1 restart" if count == 1 else f"{count} restarts"


def _models(models: Sequence[pb.ModelStatus], now: float) -> RenderableType:
    notes = [note for model in models for note in _notes(model, now)]
    return _Facts([_model(model) for model in models], sentences=list(filter(None, map(_ages, models))), notes=notes)


def _model(model: pb.ModelStatus) -> dict[str, str | Text]:
    facts: dict[str, str | Text] = {
        "model": model.model,
        "state": Text(pb.ModelStatus.State.Name(model.state).lower(), _STATES.get(model.state, "")),
        "published": str(model.published.number) if model.HasField("published") else NOTHING,
        "serving": str(model.serving.number) if model.HasField("serving") else NOTHING,
        "resident": "\n".join(map(str, sorted(model.resident, reverse=True))) or NOTHING,
        "quarantined": "\n".join(str(bad.number) for bad in model.quarantined) or NOTHING,
        "lag": lag(model).replace(", ", "\n"),
        "pinned": str(model.pinned) if model.HasField("pinned") else NOTHING,
    }
    if model.labels:
        facts["labels"] = "\n".join(f"{label} {number}" for label, number in sorted(model.labels.items()))
    if model.parts:
        facts["parts"] = "\n".join(f"{part.model} {part.version.number}" for part in model.parts)
    return facts


def _notes(model: pb.ModelStatus, now: float) -> list[str]:
    notes = [
        f"{model.model}: version {bad.number} was refused {ago(bad.since, now)}: {bad.reason}"
        for bad in model.quarantined
    ]
    notes += [f"{model.model}: signature {name} is not served: {why}" for name, why in sorted(model.not_served.items())]
    if model.waiting_for:
        notes.append(f"{model.model}: waits for a version: {model.waiting_for}")
    return [*notes, f"{model.model}: last error: {model.last_error}"] if model.last_error else notes


def lag(model: pb.ModelStatus) -> str:
    """How far what serves is behind what is published."""
    seconds = duration(model.lag_seconds) if model.HasField("lag_seconds") else NOTHING
    return f"{seconds}, {model.lag_steps} steps" if model.HasField("lag_steps") else seconds


def _ask(status: Callable[[], Answer]) -> tuple[Answer | None, str]:
    try:
        return status(), ""
    except CallError as error:
        return None, str(error)


def _answer(address: str, error: str, **status: Any) -> dict[str, Any]:
    return {"address": address, "error": error or None, **status}


def _stall(status: pb.PublisherStatus) -> str:
    """Finer than `duration`: it should be well below a millisecond."""
    return f"{status.stall_seconds * 1000:.1f} ms" if status.HasField("stall_seconds") else NOTHING


def _published(version: pb.Version, now: float) -> str:
    return f"{version.number}, {ago(version.committed_at, now)}"


def _ages(model: pb.ModelStatus) -> str:
    """How old what serves is: that is what shows where nothing new comes."""
    ages = []
    if model.HasField("since_publication_seconds"):
        ages.append(f"published {duration(model.since_publication_seconds)} ago")
    if model.HasField("serving_age_seconds"):
        ages.append(f"answers are {duration(model.serving_age_seconds)} old")
    return f"{model.model}: {', '.join(ages)}" if ages else ""


@dataclass(frozen=True)
class _Facts:
    """Facts by name, of one or more: side by side where there is room, else below each other; then lines and notes."""

    rows: Sequence[Mapping[str, str | Text]]
    notes: Sequence[str]
    sentences: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        beside = self._beside()
        fits = Measurement.get(console, options.update(max_width=_UNBOUNDED), beside).maximum <= options.max_width
        yield beside if fits else self._below()
        yield from (Text(line(sentence)) for sentence in self.sentences)
        yield from (Text(line(note), "red") for note in self.notes)
        yield ""

    def _beside(self) -> RenderableType:
        names = dict.fromkeys(name for row in self.rows for name in row)
        table = formatting.table(*names)
        for row in self.rows:
            table.add_row(*(_cell(row.get(name, NOTHING)) for name in names))
        return table

    def _below(self) -> RenderableType:
        table = formatting.table(show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for number, row in enumerate(self.rows):
            if number:
                table.add_row()
            for name, fact in row.items():
                table.add_row(name, fact if isinstance(fact, Text) else harmless(fact.replace("\n", ", ")))
        return table


def _cell(fact: str | Text) -> str | Text:
    return fact if isinstance(fact, Text) else "\n".join(map(harmless, fact.split("\n")))
