"""`paramsync status`: shows training, publishing and serving, once, continuously, or as one line for a monitor."""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from paramsync.cli.formatting import console, duration, to_json
from paramsync.cli.live import Last, Polled, show
from paramsync.cli.process import complain, importing, interruptible
from paramsync.cli.servers import ask_all, bucket_faults, connected, report, trainer
from paramsync.cli.settings import credentials
from paramsync.errors import CallError, ParamsyncError, SettingsError
from paramsync.host.files import line
from paramsync.remote.bucket import is_address
from paramsync.rpc.client import Inferencer, Trainer, short
from paramsync.v1 import sync_pb2 as pb

if TYPE_CHECKING:
    from paramsync.cli.bucket import Watch as BucketWatch

_MAX_LAG = 60.0
_POLL_SECONDS = 0.5


def run(arguments: Namespace) -> bool | int:
    """Return True if every inferencer answers and the given bucket, if any, is sound; with `--check` the exit code."""
    if is_address(arguments.model) and not arguments.servers:
        from paramsync.cli.bucket import status  # here, because most calls name a model

        return status(arguments)
    if arguments.check:
        return _check(arguments)
    if (arguments.max_lag, arguments.max_age) != (None, None):
        raise SettingsError("--max-lag and --max-age: expected --check with them")
    bucket: BucketWatch | None = None
    if is_address(arguments.model):
        from paramsync.cli.bucket import watch_of  # here, because most calls name a model

        bucket = watch_of(arguments.model)
    with contextlib.ExitStack() as stack:
        inferencers = stack.enter_context(connected(arguments))
        servers = [inferencer.address for inferencer in inferencers]
        address, expected = trainer(arguments, servers)
        training = stack.enter_context(Trainer(address, credentials(arguments)))
        reports = [partial(_ask, inferencer, arguments.model) for inferencer in inferencers]
        asks: list[Callable[[], Any]] = [training.status, *reports]
        programs = [Polled(ask, _POLL_SECONDS) for ask in asks]
        every = programs if bucket is None else [*programs, bucket.polled]
        if arguments.watch:
            answers = dict(zip(servers, programs[1:], strict=True))
            watch = _Watch(address, programs[0], answers, expected=expected, bucket=bucket)
            show(watch, every, seconds=_POLL_SECONDS, json=arguments.json)
        interruptible(lambda: ask_all(every, lambda program: program.run_once()))
    publisher, *lasts = (program.last for program in programs)
    several = len(servers) > 1
    for last in (publisher, *(() if several else lasts)):
        if last.error is not None and not isinstance(last.error, CallError):
            raise last.error
    if arguments.json:
        facts = None if bucket is None else bucket.facts()
        sys.stdout.write(to_json(report(address, publisher, dict(zip(servers, lasts, strict=True)), facts)))
    else:
        with importing():  # here, because --json does not need this module
            from paramsync.cli.overview import status_view
        screen = console()
        if bucket is not None and bucket.polled.last.answer is not None:
            screen.print(bucket.drawn())
            screen.print()
        # without errors, which are printed below
        shown = {server: Last(last.answer, last.at) for server, last in zip(servers, lasts, strict=True)}
        screen.print(status_view(publisher.answer, shown, time.time()))
        screen.file.flush()
    failed = [*zip(servers, lasts, strict=True)]
    failed += [] if bucket is None else [("", bucket.polled.last)]
    for server, last in ([("", publisher)] if expected else []) + failed:
        if last.error is not None:
            # refusals, such as for an unknown model, do not name the server
            who = f"{server}: " if several and server not in str(last.error) else ""
            complain(f"paramsync status: {who}{last.error}")
    return all(last.error is None for _, last in failed) and not (bucket and bucket.broken)


def _ask(inferencer: Inferencer, model: str) -> pb.GetStatusResponse:
    """Return a server's report about a model, about all models for "", or about the models that follow an address."""
    if not is_address(model):
        return inferencer.report(model)
    answer = inferencer.report()
    named = model.rstrip("/")
    followers = [
        status for status in answer.models if named in (status.bucket.address, *status.bucket.addresses.split(","))
    ]
    if not followers:
        raise CallError(f"inferencer at {inferencer.address} serves no model from {model}", "NOT_FOUND")
    return pb.GetStatusResponse(models=followers, workers=answer.workers)


class _Watch:
    """The view of `--watch`: new lines and objects if a model changed, or a server stopped or began answering."""

    def __init__(
        self,
        address: str,
        training: Polled[pb.PublisherStatus],
        servers: Mapping[str, Polled[pb.GetStatusResponse]],
        *,
        expected: bool,
        bucket: BucketWatch | None = None,
    ) -> None:
        """The trainer is at `address`. If it is `expected`, its absence is shown."""
        self._bucket = bucket
        self._address = address
        self._training = training
        self._servers = servers
        self._expected = expected
        self._said: dict[str, str] = {}

    def drawn(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        from paramsync.cli.overview import BAD, status_view

        training = self._training.last
        answers = {server: program.last for server, program in self._servers.items()}
        view = status_view(None if training.error else training.answer, answers, time.time())
        if self._bucket is not None:
            view = Group(self._bucket.drawn(), "", view)
        if training.error is None or not (self._expected or training.answer):
            return view
        return Group(view, Text(line(str(training.error)), BAD))

    def lines(self) -> Iterator[str]:
        if self._bucket is not None:
            yield from self._bucket.lines()
        several = len(self._servers) > 1
        for server, program in self._servers.items():
            last = program.last
            if last.error is not None:
                yield from self._changed(server, f"lost: {short(last.error, server)}")
                continue
            if server in self._said:
                yield from self._changed(server, "answers again")
            for model in last.answer.models if last.answer is not None else ():
                who = f"{server} {model.model}" if several else model.model
                yield from self._changed(who, _sentence(model), essence=_essence(model))

    def _changed(self, who: str, text: str, *, essence: str = "") -> Iterator[str]:
        if self._said.get(who) != (essence or text):
            self._said[who] = essence or text
            yield f"{time.strftime('%H:%M:%S')} {who}: {text}"

    def objects(self) -> Iterator[object]:
        lasts = {server: program.last for server, program in self._servers.items()}
        essence = repr([str(last.error) if last.error else _essences(last.answer) for last in lasts.values()])
        changed = self._bucket is not None and list(self._bucket.objects())
        if essence != self._said.get("") or changed:
            self._said[""] = essence
            facts = None if self._bucket is None else self._bucket.facts()
            yield report(self._address, self._training.last, lasts, facts)


def _essences(answer: pb.GetStatusResponse | None) -> list[str]:
    return [] if answer is None else list(map(_essence, answer.models))


def _essence(model: pb.ModelStatus) -> str:
    """Return the facts that get a new line if they change. Ages are left out, because they change all the time."""
    refused = [quarantined.number for quarantined in model.quarantined]
    pinned = model.pinned if model.HasField("pinned") else None
    return repr(
        (model.state, model.serving.number, pinned, refused, model.reason, model.publisher, model.bucket.reason)
    )


def _sentence(model: pb.ModelStatus) -> str:
    from paramsync.cli.overview import behind, publishing

    serving = f"version {model.serving.number} serves" if model.HasField("serving") else "no version serves"
    parts = [serving + (", pinned" if model.HasField("pinned") else ""), behind(model)]
    if model.publisher in (pb.ModelStatus.FINISHED, pb.ModelStatus.DIED):
        parts.append(publishing(model, time.time()))
    parts += [f"version {refused.number} is refused: {refused.reason}" for refused in model.quarantined[-1:]]
    if model.reason:
        parts.append(model.reason if model.HasField("serving") else f"waits for a version: {model.reason}")
    return "; ".join(parts)


class Level(IntEnum):
    """The exit codes of `--check`."""

    GOOD = 0
    DEGRADED = 1  # requests are answered, but something is wrong
    BAD = 2  # requests are not answered, or answered wrongly


Finding = tuple[Level, str]


def _check(arguments: Namespace) -> int:
    """Print one line for a monitor. Returns the exit code."""
    if arguments.json or arguments.watch:
        raise SettingsError("--check: prints one line, and takes no --json or --watch")
    with connected(arguments) as inferencers:
        answers = ask_all(inferencers, lambda inferencer: _ask(inferencer, arguments.model))
    servers = [inferencer.address for inferencer in inferencers]
    several = len(servers) > 1
    findings: list[Finding] = []
    for server, answer in zip(servers, answers, strict=True):
        if isinstance(answer, ParamsyncError):
            told = [(Level.BAD, short(answer, server) if several else str(answer))]
        else:
            told = list(check_server(answer, time.time(), max_lag=arguments.max_lag, max_age=arguments.max_age))
        findings += [(level, f"{server} {text}" if several else text) for level, text in told]
    level, text = summary(findings)
    sys.stdout.write(line(f"{level.name.lower()}: {text}") + "\n")
    return level


def summary(findings: Sequence[Finding]) -> Finding:
    """Return the worst level, and all problems, the worst first. Without problems, the texts of all good findings."""
    worst = max((level for level, _ in findings), default=Level.GOOD)
    told = [finding for finding in findings if finding[0] is not Level.GOOD or worst is Level.GOOD]
    return worst, "; ".join(text for _, text in sorted(told, key=lambda finding: -finding[0]))


def check_server(
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
        wrong = list(check_model(model, now, max_lag=_MAX_LAG if max_lag is None else max_lag, max_age=max_age))
        good = (Level.GOOD, f"version {model.serving.number} serves")
        yield from ((level, f"{model.model}: {text}") for level, text in wrong or [good])


def check_model(model: pb.ModelStatus, now: float, *, max_lag: float, max_age: float | None) -> Iterator[Finding]:
    """Yield the problems of a model. If no version serves, no other problem is reported."""
    quarantine = {case.number: case.reason for case in model.quarantined}
    if not model.HasField("serving"):
        reasons = [model.reason or "none has come"]
        reasons += [f"version {number} is in quarantine: {reason}" for number, reason in quarantine.items()]
        yield Level.BAD, f"no version serves: {reasons[-1]}"
        return
    if model.state == pb.ModelStatus.DAMAGED:
        yield Level.BAD, f"version {model.serving.number} serves and is damaged"
    if model.state == pb.ModelStatus.DRAINING:
        yield Level.DEGRADED, "the server is stopping"
    if model.reason:
        yield Level.DEGRADED, model.reason
    for fault in bucket_faults(model.bucket, now):
        yield Level.DEGRADED, fault
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
