"""What a person sees of a trainer and of servers: what the trainer does, one table of the models, what is wrong.

Pure: from what was answered, and how many seconds ago, to what rich draws.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from paramsync.cli.fitted_table import fitted
from paramsync.cli.formatting import NOTHING, ago, duration, size
from paramsync.cli.servers import short
from paramsync.errors import ParamsyncError
from paramsync.host.files import line
from paramsync.v1 import sync_pb2 as pb

GOOD, DOUBTFUL, BAD = "green", "yellow", "red"

_STATES = {pb.ModelStatus.SERVING: GOOD, pb.ModelStatus.WAITING: DOUBTFUL, pb.ModelStatus.DRAINING: DOUBTFUL}
_LATE_SECONDS = 5.0  # a version that takes longer than the slow poll does not just come
_NAMED = 5  # versions in one sentence
_DISPENSABLE = ("in memory", "age", "published")


@dataclass(frozen=True, slots=True)
class StatusRow:
    """A model of a server; or a server, and why it tells nothing of its models."""

    server: str = ""
    model: pb.ModelStatus | None = None
    seconds: float = 0.0
    """How old the status is."""
    missing: str = ""
    """What stands in place of a model: why the server does not answer, if it is `lost`."""
    lost: bool = False


@dataclass(frozen=True)
class StatusTable:
    """A line or two of the trainer, and a table that is as narrow as the terminal. `now` is the time of day."""

    rows: Sequence[StatusRow]
    now: float
    trainer: pb.PublisherStatus | None = None
    several: bool = False
    """Whether there is more than one server, so that a column says which."""
    notes: Sequence[Text] = field(default=())
    """What else there is to say, below the table."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.trainer is not None:
            yield from _trainer(self.trainer, self.now)
            yield ""
        if self.several or any(row.model for row in self.rows):
            cells = [_cells(row, several=self.several) for row in self.rows]
            yield from fitted(cells, options.max_width, dispensable=_DISPENSABLE)
        else:
            yield from (_in_place(row) for row in self.rows)
        notes = [note for row in self.rows for note in _notes(row, self.now, several=self.several)]
        notes += self.notes
        if notes:
            yield ""
        yield from notes


def _cells(row: StatusRow, *, several: bool) -> dict[str, Text]:
    server = {"server": Text(row.server)} if several else {}
    model = row.model
    if model is None:
        return {**server, "": _in_place(row)}
    state = pb.ModelStatus.State.Name(model.state).lower()
    died = model.publisher == pb.ModelStatus.DIED and model.state == pb.ModelStatus.SERVING
    failing = model.reason and model.state == pb.ModelStatus.SERVING
    style = BAD if failing else DOUBTFUL if died else _STATES.get(model.state, BAD)
    serving = str(model.serving.number) if model.HasField("serving") else NOTHING
    serving += " pinned" if model.HasField("pinned") else ""
    aged = model.HasField("serving_age_seconds")
    return {
        **server,
        "model": Text(line(model.model)),
        "state": Text(state, style),
        "serving": Text(serving, DOUBTFUL if model.HasField("pinned") else ""),
        "published": Text(str(model.published.number) if model.HasField("published") else NOTHING),
        "lag": Text(behind(model, row.seconds), DOUBTFUL if _is_late(model, row.seconds) else ""),
        "age": Text(duration(model.serving_age_seconds + row.seconds) if aged else NOTHING),
        "in memory": Text(", ".join(map(str, sorted(model.resident, reverse=True))) or NOTHING),
    }


def _in_place(row: StatusRow) -> Text:
    return Text(line(row.missing), BAD if row.lost else "")


def _is_late(model: pb.ModelStatus, seconds: float) -> bool:
    return model.HasField("lag_seconds") and model.lag_seconds > 0 and model.lag_seconds + seconds > _LATE_SECONDS


def behind(model: pb.ModelStatus, seconds: float = 0.0) -> str:
    """How far what serves is behind what is published, in words, so many seconds after the status was given."""
    parts = lag(model, seconds).split(", ")
    if parts == [NOTHING]:
        return NOTHING
    if model.HasField("lag_seconds") and model.lag_seconds == 0:
        return "up to date"
    return ", ".join([f"{parts[0]} behind", *parts[1:]])


def lag(model: pb.ModelStatus, seconds: float = 0.0) -> str:
    """The same as time, steps and versions."""
    parts = []
    if model.HasField("lag_seconds"):
        parts.append(duration(model.lag_seconds + (seconds if model.lag_seconds else 0.0)))
    if model.HasField("lag_steps"):
        parts.append(f"{model.lag_steps} step{'' if model.lag_steps == 1 else 's'}")
    if model.lag_versions:
        parts.append(f"{model.lag_versions} version{'' if model.lag_versions == 1 else 's'}")
    return ", ".join(parts) or NOTHING


def _notes(row: StatusRow, now: float, *, several: bool) -> list[Text]:
    """What there is to say of a model beside its numbers; red is what is wrong."""
    model = row.model
    if model is None:
        return []
    who = f"{row.server} {model.model}" if several else model.model
    bad = refusals(model.quarantined, now)
    bad += [f"signature {name} is not served: {why}" for name, why in sorted(model.not_served.items())]
    if model.publisher == pb.ModelStatus.DIED:
        bad.insert(0, publishing(model, now))
    notes = [Text(line(f"{who}: {note}"), BAD) for note in bad]
    if model.reason:
        waits = not model.HasField("serving")
        text = f"{who}: waits for a version: {model.reason}" if waits else f"{who}: {model.reason}"
        notes.append(Text(line(text), DOUBTFUL if waits else BAD))
    told = [] if several else _told(model, row.seconds, now)
    return [*([Text(line(f"{who}: {', '.join(told)}"))] if told else []), *notes]


def publishing(model: pb.ModelStatus, now: float) -> str:
    """What became of the publisher of its store; empty where the store does not say."""
    since = duration(max(0.0, now - model.publisher_since))
    return {
        pb.ModelStatus.TRAINING: f"training for {since}",
        pb.ModelStatus.FINISHED: f"training finished {since} ago",
        pb.ModelStatus.DIED: f"the trainer died {since} ago",
    }.get(model.publisher, "")


def refusals(quarantined: Iterable[pb.Quarantine], now: float) -> list[str]:
    """A sentence about all versions that were refused for one reason, in which only their own number differs."""
    groups: dict[str, list[pb.Quarantine]] = {}
    for refused in quarantined:
        reason = re.sub(rf"(?<!\d){refused.number}(?!\d)", "N", refused.reason)
        groups.setdefault(reason, []).append(refused)
    return [_refusal(group, now) for group in sorted(groups.values(), key=lambda group: group[-1].number)]


def _refusal(group: Sequence[pb.Quarantine], now: float) -> str:
    last = group[-1]
    when = ago(last.since, now)
    if len(group) == 1:
        return f"version {last.number} was refused {when}: {last.reason}"
    if len(group) <= _NAMED:
        which = f"versions {', '.join(str(refused.number) for refused in group[:-1])} and {last.number}"
    else:
        which = f"{len(group)} versions from {group[0].number} to {last.number}"
    return f"{which} were refused, the last {when}: {last.reason}"


def _told(model: pb.ModelStatus, seconds: float, now: float) -> list[str]:
    told = [publishing(model, now)] if model.publisher in (pb.ModelStatus.TRAINING, pb.ModelStatus.FINISHED) else []
    told += [f"pinned to version {model.pinned}"] if model.HasField("pinned") else []
    told += [f"{label} is version {number}" for label, number in sorted(model.labels.items())]
    told += [f"{part.model} is version {part.version.number}" for part in model.parts]
    told += [f"signed by key {model.signed_by}"] if model.signed_by else []
    if model.HasField("since_publication_seconds"):
        told.append(f"published {duration(model.since_publication_seconds + seconds)} ago")
    if model.HasField("serving_age_seconds"):
        told.append(f"answers are {duration(model.serving_age_seconds + seconds)} old")
    return told


def workers(answers: Mapping[str, pb.GetStatusResponse | ParamsyncError], now: float) -> list[Text]:
    """A line about the processes of a server; of several servers, about each where not all answer."""
    lines = []
    for server, answer in answers.items():
        if isinstance(answer, ParamsyncError) or not answer.workers:
            continue
        numbers = {worker.number for worker in answer.workers}
        answering = {worker.number for worker in answer.workers if worker.state == pb.WorkerStatus.ANSWERING}
        restarts = sum({worker.number: worker.restarts for worker in answer.workers}.values())
        starting = [worker for worker in answer.workers if worker.state == pb.WorkerStatus.STARTING]
        importing = [worker.since for worker in starting if not worker.pid]
        if importing and not answering:
            told = [f"starting, importing TensorFlow, {duration(now - min(importing))}"]
        else:
            told = [f"{len(answering)} of {len(numbers)} answer" if answering < numbers else f"{len(answering)} answer"]
            told.append(f"{size(sum(worker.private_bytes for worker in answer.workers))} of their own")
        told += [f"{restarts} restart{'' if restarts == 1 else 's'}"] if restarts else []
        if answering < numbers or len(answers) == 1:
            who = f"{server} workers" if len(answers) > 1 else "workers"
            lines.append(Text(f"{who}: {', '.join(told)}", DOUBTFUL if answering < numbers else ""))
    return lines


def _trainer(status: pb.PublisherStatus, now: float) -> Iterator[Text]:
    state = pb.PublisherStatus.State.Name(status.state).lower()
    step = f"step {status.step}" + (f" of {status.total_steps}" if status.HasField("total_steps") else "")
    facts = [f"{state} on {status.device}" if status.device else state, step]
    facts += [f"loss {status.loss:.4f}"] if status.HasField("loss") else []
    facts.append(f"{status.steps_per_second:.1f} steps/s")
    yield Text(line(f"trainer: {', '.join(facts)}"))
    if status.HasField("published"):
        told = [f"version {status.published.number} published {ago(status.published.committed_at, now)}"]
    else:
        told = ["nothing published yet"]
    # Finer than `duration`: it should be well below a millisecond.
    told += [f"training held {status.stall_seconds * 1000:.1f} ms"] if status.HasField("stall_seconds") else []
    told += [f"{status.skipped} skipped"] if status.skipped else []
    told += [f"{status.refused} refused"] if status.refused else []
    yield Text(line(f"trainer: {', '.join(told)}"))
    for what, why in (
        ("last error", status.last_error),
        ("held back", status.held_back),
        ("training state: last error", status.state_error),
    ):
        if why:
            yield Text(line(f"trainer: {what}: {why}"), BAD)


def rows(server: str, answer: pb.GetStatusResponse | ParamsyncError, *, seconds: float = 0.0) -> list[StatusRow]:
    """Of one server, whose answer is so old."""
    if isinstance(answer, ParamsyncError):
        return [StatusRow(server, missing=short(answer, server), lost=True)]
    return [StatusRow(server, model, seconds) for model in answer.models] or [
        StatusRow(server, missing="no model is served")
    ]
