"""`paramsync sync`: makes a version serve now, and waits until it does."""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from paramsync.cli.wording import console, duration, plain, redraws, to_json
from paramsync.host.files import line
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb

_PHASES = {
    pb.SyncProgress.PUBLISHING: "the trainer publishes",
    pb.SyncProgress.LOOKING: "looking for",
    pb.SyncProgress.RESTORING: "restoring",
    pb.SyncProgress.VERIFYING: "verifying",
    pb.SyncProgress.WARMING: "warming",
}


def run(arguments: Namespace) -> bool:
    started = time.monotonic()
    with Inferencer(arguments.inferencer) as inferencer, _shown(arguments.model) as show:
        status = inferencer.sync(
            arguments.model, version=arguments.version, fresh=arguments.fresh, seconds=arguments.timeout, progress=show
        )
    seconds = time.monotonic() - started
    serving = status.serving
    if arguments.json:
        sys.stdout.write(to_json({"model": status.model, "seconds": round(seconds, 4), "status": plain(status)}))
    else:
        said = f"{status.model}: version {serving.number} (step {serving.step}) serves, {duration(seconds)}"
        sys.stdout.write(f"{line(said)}\n")
    return True


@contextlib.contextmanager
def _shown(model: str) -> Iterator[Callable[[pb.SyncProgress], None]]:
    """Shows the phase, and how much of it is done, while it lasts, on a terminal; elsewhere nothing."""
    screen = console(stderr=True)
    if not redraws(screen):
        yield lambda _: None
        return
    name = f"{model}: " if model else ""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(f"{name}asking", total=None)

        def show(progress: pb.SyncProgress) -> None:
            if progress.phase in _PHASES:
                which = f" version {progress.version}" if progress.version else " the newest version"
                said = "" if progress.phase == pb.SyncProgress.PUBLISHING else which
                bar.update(
                    task,
                    description=f"{name}{_PHASES[progress.phase]}{said}",
                    total=progress.bytes_total or None,
                    completed=progress.bytes_done,
                )

        yield show
