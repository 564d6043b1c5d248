"""`paramsync status`: what is trained, published and served, and how far apart they are."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paramsync.cli.wording import NOTHING, ago, console, duration, plain, to_json
from paramsync.client import Inferencer, Trainer
from paramsync.errors import CallError
from paramsync.v1 import sync_pb2 as pb

_STATES = {pb.ModelStatus.SERVING: "green", pb.ModelStatus.WAITING: "yellow", pb.ModelStatus.DRAINING: "yellow"}
_Found = TypeVar("_Found")


def run(arguments: Namespace) -> bool:
    with Trainer(arguments.trainer) as trainer, Inferencer(arguments.inferencer) as inferencer:
        publisher, no_trainer = _ask(trainer.status)
        models, no_inferencer = _ask(inferencer.status)
    if arguments.json:
        found = {
            "trainer": _answer(arguments.trainer, no_trainer, status=publisher and plain(publisher)),
            "inferencer": _answer(
                arguments.inferencer, no_inferencer, models=None if models is None else [plain(one) for one in models]
            ),
        }
        sys.stdout.write(to_json(found))
    else:
        screen, now = console(), time.time()
        screen.print(no_trainer if publisher is None else trainer_table(publisher, now), soft_wrap=publisher is None)
        screen.print(no_inferencer if models is None else models_table(models, now), soft_wrap=models is None)
    return models is not None


def trainer_table(status: pb.PublisherStatus, now: float) -> RenderableType:
    table = _table("trainer", "device", "step", "loss", "steps/s", "published", "skipped")
    step = f"{status.step}/{status.total_steps}" if status.HasField("total_steps") else str(status.step)
    table.add_row(
        pb.PublisherStatus.State.Name(status.state).lower(),
        status.device,
        step,
        f"{status.loss:.4f}" if status.HasField("loss") else NOTHING,
        f"{status.steps_per_second:.1f}",
        _published(status.published, now) if status.HasField("published") else NOTHING,
        str(status.skipped),
    )
    return _with_notes(table, [f"last error: {status.last_error}"] if status.last_error else [])


def models_table(models: tuple[pb.ModelStatus, ...], now: float) -> RenderableType:
    table = _table("model", "state", "published", "serving", "resident", "quarantined", "lag", "pinned")
    notes = []
    for one in models:
        state = pb.ModelStatus.State.Name(one.state).lower()
        table.add_row(
            one.model,
            Text(state, _STATES.get(one.state, "")),
            str(one.published.number) if one.HasField("published") else NOTHING,
            str(one.serving.number) if one.HasField("serving") else NOTHING,
            "\n".join(map(str, sorted(one.resident, reverse=True))) or NOTHING,
            "\n".join(str(bad.number) for bad in one.quarantined) or NOTHING,
            lag(one).replace(", ", "\n"),
            str(one.pinned) if one.HasField("pinned") else NOTHING,
        )
        notes += [
            f"{one.model}: version {bad.number} was refused {ago(bad.since, now)}: {bad.reason}"
            for bad in one.quarantined
        ]
        notes += [f"{one.model}: last error: {one.last_error}"] if one.last_error else []
    return _with_notes(table, notes)


def lag(one: pb.ModelStatus) -> str:
    """How far what serves is behind what is published."""
    seconds = duration(one.lag_seconds) if one.HasField("lag_seconds") else NOTHING
    return f"{seconds}, {one.lag_steps} steps" if one.HasField("lag_steps") else seconds


def _ask(status: Callable[[], _Found]) -> tuple[_Found | None, str]:
    try:
        return status(), ""
    except CallError as error:
        return None, str(error)


def _answer(address: str, error: str, **found: Any) -> dict[str, Any]:
    return {"address": address, "error": error or None, **found}


def _published(version: pb.Version, now: float) -> str:
    return f"{version.number}, {ago(version.committed_at, now)}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _with_notes(table: Table, notes: list[str]) -> RenderableType:
    return Padding(Group(table, *(Text(note, "red") for note in notes)), (0, 0, 1, 0))
