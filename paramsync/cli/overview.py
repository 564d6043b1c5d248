"""Draws the status of a trainer and of servers with rich: lines about the trainer, a table of models, then notes.

This module makes no calls: its functions turn answers and the current time into text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from paramsync.cli.formatting import NOTHING, ago, duration, size, table, way
from paramsync.cli.live import Last
from paramsync.cli.servers import bucket_faults, shares
from paramsync.host.files import line
from paramsync.remote.bucket_status import stages
from paramsync.rpc.client import short
from paramsync.v1 import sync_pb2 as pb

GOOD, DOUBTFUL, BAD = "green", "yellow", "red"
Answers = Mapping[str, Last[pb.GetStatusResponse]]
"""The last answer of each server, by its address."""

_STATES = {pb.ModelStatus.SERVING: GOOD, pb.ModelStatus.WAITING: DOUBTFUL, pb.ModelStatus.DRAINING: DOUBTFUL}
_LATE_SECONDS = 5.0  # a larger lag is marked: this is longer than the slowest poll and a swap take
_NAMED = 5  # versions that one sentence lists
_WRAPPED = ("server", "model", "lag", "in memory")


@dataclass(frozen=True)
class FittedTable:
    """A table of named cells.

    On a narrow terminal it leaves out the `dispensable` columns, in their order. If it is still too wide, it wraps long
    names.
    """

    rows: Sequence[Mapping[str, Text]]
    dispensable: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        drawn = self._table(columns)
        for name in self.dispensable:
            if Measurement.get(console, options, drawn).maximum < options.max_width:
                break
            columns.remove(name)
            drawn = self._table(columns)
        yield drawn

    def _table(self, columns: Sequence[str]) -> Table:
        drawn = table(*columns, whole=[name for name in columns if name not in _WRAPPED])
        for row in self.rows:
            drawn.add_row(*(row.get(name, Text(NOTHING)) for name in columns))
        return drawn


def status_view(trainer: pb.PublisherStatus | None, servers: Answers, now: float) -> RenderableType:
    """Draw the trainer's state, the models of all servers (slowest first), which versions serve, and problems."""
    parts: list[RenderableType] = [] if trainer is None else [*_trainer(trainer, now), ""]
    several = len(servers) > 1
    ranked = [row for server, last in servers.items() for row in _rows(server, last, several=several)]
    rows = [row for _, row in sorted(ranked, key=lambda pair: pair[0])] if several else [row for _, row in ranked]
    parts += [FittedTable(rows, ("in memory", "age", "published"))] if rows else []
    parts += ["", *_shares(servers)] if several else []
    notes = [note for server, last in servers.items() for note in _notes(server, last, now, several=several)]
    if notes:
        parts += ["", *notes]
    return Group(*parts)


_Rank = tuple[str, int, int]


def _rows(
    server: str, last: Last[pb.GetStatusResponse], *, several: bool
) -> Iterator[tuple[_Rank, Mapping[str, Text]]]:
    """Yield the rows of a server, each with its rank: by model, by version, then the slowest server first.

    Servers without models come before all models.

    Whole seconds of lag count, because rows of `--watch` should not change places all the time.
    """
    name = {"server": Text(server)} if several else {}
    if last.answer is None and several:
        yield ("", 0, 0), {**name, "model": Text(NOTHING), "state": Text("lost", BAD)}
    for model in () if last.answer is None else last.answer.models:
        serving = model.serving.number if model.HasField("serving") else -1
        yield (model.model, serving, -int(model.lag_seconds)), {**name, **_cells(model, last.age)}
    if last.answer is not None and not last.answer.models:
        yield ("", 1, 0), {**name, "model": Text(NOTHING), "state": Text("no model is served")}


def _shares(servers: Answers) -> Iterator[Text]:
    """Yield a line for each model: which versions serve on how many servers."""
    models: dict[str, list[str]] = {}
    for some in shares(servers):
        which = "no version" if some.version is None else f"version {some.version}"
        skew = "" if some.skew_seconds is None else f", swapped within {duration(some.skew_seconds)}"
        count = f"{some.servers} server{'' if some.servers == 1 else 's'}"
        models.setdefault(some.model, []).append(f"{which} on {count} ({some.share:.0%}{skew})")
    for model, parts in models.items():
        yield Text(line(f"{model}: {'; '.join(parts)}"))


def _cells(model: pb.ModelStatus, seconds: float) -> dict[str, Text]:
    """Return the row of a model. `seconds` is the age of the status."""
    state = pb.ModelStatus.State.Name(model.state).lower()
    died = model.publisher == pb.ModelStatus.DIED and model.state == pb.ModelStatus.SERVING
    failing = model.reason and model.state == pb.ModelStatus.SERVING
    style = BAD if failing else DOUBTFUL if died else _STATES.get(model.state, BAD)
    pinned = model.HasField("pinned")
    late = model.lag_seconds > 0 and model.lag_seconds + seconds > _LATE_SECONDS
    aged = model.HasField("serving_age_seconds")
    return {
        "model": Text(line(model.model)),
        "state": Text(state, style),
        "serving": Text(_number(model, "serving") + (" pinned" if pinned else ""), DOUBTFUL if pinned else ""),
        "published": Text(_number(model, "published")),
        "lag": Text(behind(model, seconds), DOUBTFUL if late else ""),
        "age": Text(duration(model.serving_age_seconds + seconds) if aged else NOTHING),
        "in memory": Text(", ".join(map(str, sorted(model.resident, reverse=True))) or NOTHING),
    }


def _number(model: pb.ModelStatus, field: str) -> str:
    return str(getattr(model, field).number) if model.HasField(field) else NOTHING


def behind(model: pb.ModelStatus, seconds: float = 0.0) -> str:
    """Return how far the served version is behind the published version. `seconds` is the age of the status."""
    parts = lag(model, seconds).split(", ")
    if parts == [NOTHING]:
        return NOTHING
    if model.HasField("lag_seconds") and model.lag_seconds == 0:
        return "up to date"
    return ", ".join([f"{parts[0]} behind", *parts[1:]])


def lag(model: pb.ModelStatus, seconds: float = 0.0) -> str:
    """Return the lag as time, steps and versions. `seconds` is the age of the status."""
    parts = []
    if model.HasField("lag_seconds"):
        parts.append(duration(model.lag_seconds + (seconds if model.lag_seconds else 0.0)))
    if model.HasField("lag_steps"):
        parts.append(f"{model.lag_steps} step{'' if model.lag_steps == 1 else 's'}")
    if model.lag_versions:
        parts.append(f"{model.lag_versions} version{'' if model.lag_versions == 1 else 's'}")
    return ", ".join(parts) or NOTHING


def _notes(server: str, last: Last[pb.GetStatusResponse], now: float, *, several: bool) -> Iterator[Text]:
    """Sentences with facts about one server that are not in the table. Problems are red."""
    if last.answer is not None:
        for model in last.answer.models:
            yield from _model_notes(model, f"{server} " if several else "", last.age, now, told=not several)
        yield from _workers(server, last.answer, now, several=several)
    if last.error is not None and last.lost_at is not None:
        yield Text(
            line(f"{server} lost {duration(time.monotonic() - last.lost_at)} ago: {short(last.error, server)}"), BAD
        )


def _model_notes(model: pb.ModelStatus, server: str, seconds: float, now: float, *, told: bool) -> Iterator[Text]:
    who = f"{server}{model.model}"
    facts = _facts(model, seconds, now) if told else []
    if facts:
        yield Text(line(f"{who}: {', '.join(facts)}"))
    bucket = model.bucket
    if told and bucket.address:
        yield from (Text(line(f"{who}: {text}")) for text in _coming(bucket, now))
    wrong = [publishing(model, now)] if model.publisher == pb.ModelStatus.DIED else []
    wrong += refusals(model.quarantined, now)
    wrong += [f"signature {name} is not served: {why}" for name, why in sorted(model.not_served.items())]
    waits = not model.HasField("serving")
    wrong += [model.reason] if model.reason and not waits else []
    wrong += list(bucket_faults(bucket, now))
    for text in wrong:
        yield Text(line(f"{who}: {text}"), BAD)
    if model.reason and waits:
        yield Text(line(f"{who}: waits for a version: {model.reason}"), DOUBTFUL)


def _coming(bucket: pb.Bucket, now: float) -> Iterator[str]:
    """Yield how versions arrive from a bucket: its last answer, and how and how fast the last version was copied."""
    facts = [f"answered {ago(bucket.answered_at, now)}"] if bucket.HasField("answered_at") else []
    facts += [f"{bucket.behind} version{'' if bucket.behind == 1 else 's'} to fetch"] if bucket.behind else []
    yield f"bucket {bucket.address} {', '.join(facts)}".rstrip()
    if bucket.HasField("copied"):
        copied = bucket.copied
        yield f"version {copied.number} came {way(copied)}"
        took = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in stages(copied).items())
        yield f"version {copied.number}: {took}"


def publishing(model: pb.ModelStatus, now: float) -> str:
    """Return the state of the publisher of the model's store; empty if unknown."""
    since = duration(max(0.0, now - model.publisher_since))
    return {
        pb.ModelStatus.TRAINING: f"training for {since}",
        pb.ModelStatus.FINISHED: f"training finished {since} ago",
        pb.ModelStatus.DIED: f"the trainer died {since} ago",
    }.get(model.publisher, "")


def refusals(quarantined: Iterable[pb.Quarantine], now: float) -> list[str]:
    """Return a sentence for each reason, with all versions that were refused for it.

    Reasons that differ only in the version's number count as the same.
    """
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


def _facts(model: pb.ModelStatus, seconds: float, now: float) -> list[str]:
    facts = [publishing(model, now)] if model.publisher in (pb.ModelStatus.TRAINING, pb.ModelStatus.FINISHED) else []
    facts += [f"pinned to version {model.pinned}"] if model.HasField("pinned") else []
    facts += [f"{label} is version {number}" for label, number in sorted(model.labels.items())]
    facts += [f"{part.model} is version {part.version.number}" for part in model.parts]
    if model.HasField("next"):
        facts.append(f"version {model.next} serves at {time.strftime('%H:%M:%S', time.localtime(model.next_at))}")
    if model.HasField("swap_skew_seconds"):
        facts.append(f"swapped {duration(model.swap_skew_seconds)} after its moment")
    facts += [f"signed by key {model.signed_by}"] if model.signed_by else []
    if model.HasField("since_publication_seconds"):
        facts.append(f"published {duration(model.since_publication_seconds + seconds)} ago")
    if model.HasField("serving_age_seconds"):
        facts.append(f"answers are {duration(model.serving_age_seconds + seconds)} old")
    return facts


def _workers(server: str, answer: pb.GetStatusResponse, now: float, *, several: bool) -> Iterator[Text]:
    """Yield a line about the workers of a server. With `several` servers, only if some workers do not answer."""
    numbers = {worker.number for worker in answer.workers}
    answering = {worker.number for worker in answer.workers if worker.state == pb.WorkerStatus.ANSWERING}
    if not numbers or (several and answering == numbers):
        return
    restarts = sum({worker.number: worker.restarts for worker in answer.workers}.values())
    importing = [w.since for w in answer.workers if w.state == pb.WorkerStatus.STARTING and not w.pid]
    if importing and not answering:
        facts = [f"starting, importing TensorFlow, {duration(now - min(importing))}"]
    else:
        facts = [f"{len(answering)} of {len(numbers)} answer" if answering < numbers else f"{len(answering)} answer"]
        facts.append(f"{size(sum(worker.private_bytes for worker in answer.workers))} of their own")
    facts += [f"{restarts} restart{'' if restarts == 1 else 's'}"] if restarts else []
    who = f"{server} workers" if several else "workers"
    yield Text(f"{who}: {', '.join(facts)}", DOUBTFUL if answering < numbers else "")


def _trainer(status: pb.PublisherStatus, now: float) -> Iterator[Text]:
    state = pb.PublisherStatus.State.Name(status.state).lower()
    step = f"step {status.step}" + (f" of {status.total_steps}" if status.HasField("total_steps") else "")
    facts = [f"{state} on {status.device}" if status.device else state, step]
    facts += [f"loss {status.loss:.4f}"] if status.HasField("loss") else []
    facts.append(f"{status.steps_per_second:.1f} steps/s")
    yield Text(line(f"trainer: {', '.join(facts)}"))
    if status.HasField("published"):
        facts = [f"version {status.published.number} published {ago(status.published.committed_at, now)}"]
    else:
        facts = ["nothing published yet"]
    # `duration` rounds to milliseconds, but a good stall is well below one millisecond.
    facts += [f"training held {status.stall_seconds * 1000:.1f} ms"] if status.HasField("stall_seconds") else []
    facts += [f"{status.skipped} skipped"] if status.skipped else []
    facts += [f"{status.refused} refused"] if status.refused else []
    yield Text(line(f"trainer: {', '.join(facts)}"))
    if status.HasField("bucket"):
        yield from (Text(line(f"trainer: {text}")) for text in _going(status.bucket, now))
    for what, why in (
        ("last error", status.last_error),
        ("held back", status.held_back),
        ("training state: last error", status.state_error),
    ):
        if why:
            yield Text(line(f"trainer: {what}: {why}"), BAD)


def _going(bucket: pb.Bucket, now: float) -> Iterator[str]:
    """Yield how versions get into a bucket: the last version, how it was copied, and how long others have waited."""
    copied = bucket.copied
    if not bucket.HasField("copied"):
        facts = ["no version of this publisher is in the bucket yet"]
    else:
        facts = [f"version {copied.number} in the bucket {ago(copied.here_at, now)}", way(copied)]
    facts += [f"versions have waited for {duration(now - bucket.waiting_since)}"] if bucket.waiting_since else []
    yield ", ".join(facts)
    facts = [f"answered {ago(bucket.answered_at, now)}"] if bucket.HasField("answered_at") else []
    facts.append(f"{size(bucket.whole_bytes + bucket.delta_bytes)} sent")
    yield f"bucket {bucket.address} {', '.join(facts)}"
