"""`paramsync sync`, `watch`, `pin`, `unpin`, `rollback`, `label`, `unlabel`: what an operator has an inferencer do."""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import Message

from paramsync.cli.credentials import credentials
from paramsync.cli.formatting import console, duration, plain, redraws, to_json
from paramsync.host.files import line
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb

_EVENTS = {
    pb.Event.FOUND: "found",
    pb.Event.RESTORED: "restored",
    pb.Event.SWAPPED: "serves",
    pb.Event.QUARANTINED: "refused",
}
_PHASES = {
    pb.SyncProgress.PUBLISHING: "the trainer publishes",
    pb.SyncProgress.LOOKING: "looking for",
    pb.SyncProgress.RESTORING: "restoring",
    pb.SyncProgress.VERIFYING: "verifying",
    pb.SyncProgress.WARMING: "warming",
}


def run(arguments: Namespace) -> bool:
    with Inferencer(arguments.inferencer, credentials(arguments)) as inferencer:
        if arguments.command == "sync":
            _sync(inferencer, arguments)
        elif arguments.command == "watch":
            for event in inferencer.watch(arguments.model):
                _print(arguments, event, _event(event))
                sys.stdout.flush()  # whoever reads waits for each
        else:
            status = _change(inferencer, arguments)
            sentence = _labels(status) if arguments.command in ("label", "unlabel") else _pinned(status)
            _print(arguments, status, sentence)
    return True


def _change(inferencer: Inferencer, arguments: Namespace) -> pb.ModelStatus:
    match arguments.command:
        case "pin":
            return inferencer.pin(arguments.model, arguments.version)
        case "unpin":
            return inferencer.unpin(arguments.model)
        case "rollback":
            return inferencer.rollback(arguments.model)
        case "label":
            return inferencer.label(arguments.model, arguments.label, arguments.version)
        case _:
            return inferencer.unlabel(arguments.model, arguments.label)


def _print(arguments: Namespace, message: Message | dict[str, Any], sentence: str) -> None:
    if not arguments.json:
        sys.stdout.write(f"{line(sentence)}\n")
    else:
        sys.stdout.write(to_json(message if isinstance(message, dict) else plain(message)))


def _labels(status: pb.ModelStatus) -> str:
    labels = ", ".join(f"{label} is version {number}" for label, number in sorted(status.labels.items()))
    return f"{status.model}: {labels or 'no labels'}"


def _pinned(status: pb.ModelStatus) -> str:
    serving = f"version {status.serving.number} serves" if status.HasField("serving") else "no version serves yet"
    if status.HasField("pinned"):
        return f"{status.model}: pinned to version {status.pinned}; {serving}"
    return f"{status.model}: follows the newest version; {serving}"


def _event(event: pb.Event) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    what = _EVENTS.get(event.kind, pb.Event.Kind.Name(event.kind).lower())
    sentence = f"{at} {event.model}: version {event.version.number} (step {event.version.step}) {what}"
    if event.kind == pb.Event.SWAPPED:
        return f"{sentence}, restored in {duration(event.restore_seconds)}"
    return f"{sentence}: {event.reason}" if event.reason else sentence


def _sync(inferencer: Inferencer, arguments: Namespace) -> None:
    started = time.monotonic()
    with _shown(arguments.model) as show:
        status = inferencer.sync(
            arguments.model, version=arguments.version, fresh=arguments.fresh, seconds=arguments.timeout, progress=show
        )
    seconds = time.monotonic() - started
    serving = f"version {status.serving.number} (step {status.serving.step}) serves"
    report = {"model": status.model, "seconds": round(seconds, 4), "status": plain(status)}
    _print(arguments, report, f"{status.model}: {serving}, {duration(seconds)}")


@contextlib.contextmanager
def _shown(model: str) -> Iterator[Callable[[pb.SyncProgress], None]]:
    """Shows the phase, and how much of it is done, while it lasts, on a terminal; elsewhere nothing."""
    screen = console(stderr=True)
    if not redraws(screen):
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    name = f"{model}: " if model else ""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(f"{name}asking", total=None)

        def show(progress: pb.SyncProgress) -> None:
            if progress.phase in _PHASES:
                version = f" version {progress.version}" if progress.version else " the newest version"
                what = "" if progress.phase == pb.SyncProgress.PUBLISHING else version
                bar.update(
                    task,
                    description=f"{name}{_PHASES[progress.phase]}{what}",
                    total=progress.bytes_total or None,
                    completed=progress.bytes_done,
                )

        yield show
