"""`paramsync status --check`: one line for a monitor, and an exit code: 0 good, 1 degraded, 2 bad. Imports little."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from enum import IntEnum

from paramsync.cli.formatting import duration
from paramsync.cli.servers import addresses, ask_all, connected, short
from paramsync.errors import ParamsyncError, SettingsError
from paramsync.host.files import line
from paramsync.v1 import sync_pb2 as pb


class Level(IntEnum):
    """The exit codes."""

    GOOD = 0
    DEGRADED = 1  # answers come, but something is wrong
    BAD = 2  # no answers come, or wrong ones


Finding = tuple[Level, str]
_MAX_LAG = 60.0


def run(arguments: Namespace) -> int:
    """The exit code. Raises SettingsError."""
    if arguments.json or arguments.watch:
        raise SettingsError("--check: prints one line, and takes no --json or --watch")
    servers = addresses(arguments)
    with connected(arguments) as inferencers:
        answers = ask_all(inferencers, lambda inferencer: inferencer.report(arguments.model))
    several = len(servers) > 1
    now = time.time()
    findings: list[Finding] = []
    for server, answer in zip(servers, answers, strict=True):
        found = (
            [(Level.BAD, short(answer, server) if several else str(answer))]
            if isinstance(answer, ParamsyncError)
            else list(of_server(answer, now, max_lag=arguments.max_lag, max_age=arguments.max_age))
        )
        findings += [(level, f"{server} {text}" if several else text) for level, text in found]
    level, text = summary(findings)
    sys.stdout.write(line(f"{level.name.lower()}: {text}") + "\n")
    return level


def summary(findings: Sequence[Finding]) -> Finding:
    """The worst level, and all that is that bad or less, the worst first; what is good where nothing is wrong."""
    worst = max((level for level, _ in findings), default=Level.GOOD)
    told = [finding for finding in findings if finding[0] is not Level.GOOD or worst is Level.GOOD]
    return worst, "; ".join(text for _, text in sorted(told, key=lambda finding: -finding[0]))


def of_server(
    answer: pb.GetStatusResponse, now: float, *, max_lag: float | None, max_age: float | None
) -> Iterator[Finding]:
    numbers = {worker.number for worker in answer.workers}
    answering = {worker.number for worker in answer.workers if worker.state == pb.WorkerStatus.ANSWERING}
    if numbers and not answering:
        yield Level.BAD, "no worker answers"
    elif answering < numbers:
        yield Level.DEGRADED, f"{len(answering)} of {len(numbers)} workers answer"
    if not answer.models:
        yield Level.BAD, "no model is served"
    for model in answer.models:
        wrong = list(of_model(model, now, max_lag=_MAX_LAG if max_lag is None else max_lag, max_age=max_age))
        good = (Level.GOOD, f"version {model.serving.number} serves")
        yield from ((level, f"{model.model}: {text}") for level, text in wrong or [good])


def of_model(model: pb.ModelStatus, now: float, *, max_lag: float, max_age: float | None) -> Iterator[Finding]:
    """What is wrong with a model. Where none serves, nothing else is said."""
    quarantine = {case.number: case.reason for case in model.quarantined}
    if not model.HasField("serving"):
        refused = [f"version {number} is in quarantine: {reason}" for number, reason in quarantine.items()]
        yield Level.BAD, f"no version serves: {[model.reason or 'none has come', *refused][-1]}"
        return
    if model.state == pb.ModelStatus.DAMAGED:
        yield Level.BAD, f"version {model.serving.number} serves and is damaged"
    if model.state == pb.ModelStatus.DRAINING:
        yield Level.DEGRADED, "the server is stopping"
    if model.reason:
        yield Level.DEGRADED, model.reason
    if model.publisher == pb.ModelStatus.DIED:
        yield Level.DEGRADED, f"the trainer died {duration(max(0.0, now - model.publisher_since))} ago"
    if model.published.number in quarantine and model.HasField("published"):
        number = model.published.number
        yield Level.DEGRADED, f"the newest version, {number}, is in quarantine: {quarantine[number]}"
    if model.lag_seconds > max_lag:
        pinned = "pinned, and " if model.HasField("pinned") else ""
        yield Level.DEGRADED, f"{pinned}{duration(model.lag_seconds)} behind"
    if max_age is not None and model.serving_age_seconds > max_age:
        yield Level.DEGRADED, f"answers are {duration(model.serving_age_seconds)} old"
