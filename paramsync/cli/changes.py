"""Changes at servers, as a person or a program is told of them: which are done, how fast, which are not, and why."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paramsync.cli.formatting import plain, to_json
from paramsync.cli.process import complain
from paramsync.errors import CallError, NotReachableError, ParamsyncError, SyncError
from paramsync.host.files import line
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb


@dataclass(slots=True)
class ServerChange:
    """What one server is asked to do about one model, and what became of it."""

    inferencer: Inferencer
    model: str
    status: pb.ModelStatus | None = None
    error: ParamsyncError | None = None
    seconds: float = 0.0

    def run(self, ask: Callable[[], pb.ModelStatus]) -> None:
        self.status = None
        started = time.monotonic()
        try:
            self.status = ask()
        except ParamsyncError as error:
            self.error = error
        self.seconds = time.monotonic() - started


def tell(
    arguments: Namespace, changes: Sequence[ServerChange], sentence: Callable[[ServerChange, pb.ModelStatus], str]
) -> bool:
    """One line for each, in the order of the changes. True where all are done."""
    several = len({change.inferencer.address for change in changes}) > 1
    for change in changes:
        address = change.inferencer.address
        if arguments.json:
            sys.stdout.write(to_json(_report(change)))
        elif change.status is not None:
            sys.stdout.write(f"{line((f'{address} ' if several else '') + sentence(change, change.status))}\n")
    sys.stdout.flush()
    for change in changes:
        if change.error is not None:
            complain(f"paramsync {arguments.command}: {_reason(change, several=several)}")
    return all(change.error is None for change in changes)


def _reason(change: ServerChange, *, several: bool) -> str:
    """Names the server, unless the error does or there is only one."""
    reason = f"{change.error}{_next_step(change.error)}"
    address = change.inferencer.address
    return f"{address} {change.model}: {reason}" if several and address not in reason else reason


def _next_step(error: ParamsyncError | None) -> str:
    """What to do, where the error does not say it."""
    cause = error.__cause__ if isinstance(error, SyncError) else error
    if not isinstance(cause, CallError) or isinstance(cause, NotReachableError):
        return ""
    if cause.code == "DEADLINE_EXCEEDED":
        return "; see `paramsync status`, or wait longer with --timeout S"
    return "; what served goes on serving, see `paramsync status`" if isinstance(error, SyncError) else ""


def _report(change: ServerChange) -> dict[str, object]:
    status = change.status
    return {
        "server": change.inferencer.address,
        "model": change.model if status is None else status.model,
        "seconds": round(change.seconds, 4),
        "error": None if change.error is None else str(change.error),
        "status": None if status is None else plain(status),
    }
