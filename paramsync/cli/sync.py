"""`paramsync sync`: makes every server serve the newest version of one or all models, or a given version, now."""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence

from paramsync.cli.formatting import console, duration, redraws
from paramsync.cli.process import complain
from paramsync.cli.servers import ServerChange, ask_all, connected, tell
from paramsync.errors import ParamsyncError, SettingsError
from paramsync.host.files import line
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb

_PHASES = {
    pb.SyncProgress.PUBLISHING: "the trainer publishes",
    pb.SyncProgress.LOOKING: "looking for",
    pb.SyncProgress.RESTORING: "restoring",
    pb.SyncProgress.VERIFYING: "verifying",
    pb.SyncProgress.WARMING: "warming",
    pb.SyncProgress.DONE: "serves",
}

Show = Callable[[ServerChange, pb.SyncProgress], None]


def run(arguments: Namespace) -> bool:
    """Return True if every server serves the requested version."""
    if arguments.all and (arguments.model or arguments.version is not None):
        raise SettingsError("expected MODEL and --version without --all, which is the newest version of every model")
    if "://" in arguments.model:
        if arguments.at is None or arguments.version is not None or arguments.fresh:
            expected = "expected --at TIME or --in S with it, and neither --version nor --fresh"
            raise SettingsError(f"{arguments.model}: {expected}: its followers serve the newest version by themselves")
        from paramsync.cli.operate import of_fleet  # here: most models have no bucket

        return of_fleet(arguments)
    with connected(arguments) as inferencers:
        changes = (
            _of_all(inferencers) if arguments.all else [ServerChange(each, arguments.model) for each in inferencers]
        )
        waiting = [change for change in changes if change.error is None]
        with _shown(waiting) as show:
            ask_all(waiting, lambda change: change.run(lambda: _ask(change, arguments, show)))
    if not changes:
        complain(f"paramsync sync: no model is served at {', '.join(each.address for each in inferencers)}")
        return False
    return tell(arguments, changes, _sentence)


def _of_all(inferencers: Sequence[Inferencer]) -> list[ServerChange]:
    """Return a change for each model, and a change with an error for each server that does not answer."""
    changes = []
    for inferencer, models in zip(inferencers, ask_all(inferencers, Inferencer.status), strict=True):
        if isinstance(models, ParamsyncError):
            changes.append(ServerChange(inferencer, "", error=models))
        else:  # a model with parts needs no change of its own: each part is a model, too, and is synced
            changes += [ServerChange(inferencer, status.model) for status in models if not status.parts]
    return changes


def _ask(change: ServerChange, arguments: Namespace, show: Show) -> pb.ModelStatus:
    return change.inferencer.sync(
        change.model,
        version=arguments.version,
        fresh=arguments.fresh,
        serve_at=arguments.at,
        seconds=arguments.timeout,
        progress=lambda progress: show(change, progress),
    )


def _sentence(change: ServerChange, status: pb.ModelStatus) -> str:
    serving = f"version {status.serving.number} (step {status.serving.step}) serves"
    return f"{status.model}: {serving}, {duration(change.seconds)}"


@contextlib.contextmanager
def _shown(changes: Sequence[ServerChange]) -> Iterator[Show]:
    """Show a progress bar for each change if standard error is a terminal, else nothing."""
    screen = console(stderr=True) if sys.stderr.isatty() else None  # importing rich takes longer than most syncs
    if screen is None or not redraws(screen):
        yield lambda change, progress: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
    from rich.table import Column

    text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    columns = (text, BarColumn(bar_width=max(5, min(20, screen.width // 4))), DownloadColumn())
    with Progress(*columns, console=screen, transient=True, expand=True) as bar:
        tasks = {id(change): bar.add_task("asking", total=None) for change in changes}

        def show(change: ServerChange, progress: pb.SyncProgress) -> None:
            version = f"version {progress.version}" if progress.version else "the newest version"
            what = f"{change.inferencer.address} {change.model}: {_PHASES.get(progress.phase, '')} {version}"
            total, done = progress.bytes_total or None, progress.bytes_done
            bar.update(tasks[id(change)], description=line(what), total=total, completed=done)

        yield show
