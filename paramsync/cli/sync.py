"""`paramsync sync`: makes a version serve now, and waits until it does."""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator

from paramsync.cli.wording import console, duration, plain, to_json
from paramsync.client import Inferencer
from paramsync.v1 import sync_pb2 as pb

_PHASES = {pb.SyncProgress.LOOKING: "looking for", pb.SyncProgress.RESTORING: "restoring"}


def run(arguments: Namespace) -> bool:
    started = time.monotonic()
    with Inferencer(arguments.inferencer) as inferencer, _shown(arguments.model) as show:
        status = inferencer.sync(arguments.model, version=arguments.version, seconds=arguments.timeout, progress=show)
    seconds = time.monotonic() - started
    serving = status.serving
    if arguments.json:
        sys.stdout.write(to_json({"model": status.model, "seconds": round(seconds, 4), "status": plain(status)}))
    else:
        line = f"{status.model}: version {serving.number} (step {serving.step}) serves, {duration(seconds)}\n"
        sys.stdout.write(line)
    return True


@contextlib.contextmanager
def _shown(model: str) -> Iterator[Callable[[pb.SyncProgress], None]]:
    """Shows the phase while it lasts, on a terminal; elsewhere nothing."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    name = f"{model}: " if model else ""
    with screen.status(f"{name}asking") as spinner:

        def show(progress: pb.SyncProgress) -> None:
            if progress.phase in _PHASES:
                which = f"version {progress.version}" if progress.version else "the newest version"
                spinner.update(f"{name}{_PHASES[progress.phase]} {which}")

        yield show
