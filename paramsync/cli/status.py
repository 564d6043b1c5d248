"""`paramsync status`: what is trained, published and served, and how far apart they are; once, or as it changes."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from paramsync.cli.credentials import credentials
from paramsync.cli.formatting import to_json
from paramsync.cli.process import complain, importing
from paramsync.cli.servers import addresses, ask_all, connected, report, trainer
from paramsync.errors import CallError, ParamsyncError, SettingsError
from paramsync.rpc.client import Inferencer, Trainer
from paramsync.v1 import sync_pb2 as pb

if TYPE_CHECKING:
    pass

Answer = pb.GetStatusResponse | ParamsyncError


def run(arguments: Namespace) -> bool | int:
    """True where every server answers; with `--check` the exit code."""
    if arguments.check:
        from paramsync.cli.check import run as check

        return check(arguments)
    if (arguments.max_lag, arguments.max_age) != (None, None):
        raise SettingsError("--max-lag and --max-age: expected --check with them")
    if arguments.watch:
        from paramsync.cli.status_watch import watch

        return watch(arguments)
    servers = addresses(arguments)
    address, expected = trainer(arguments, servers)
    with connected(arguments) as inferencers, Trainer(address, credentials(arguments)) as training:
        publisher, *told = ask_all([training.status, *(_asking(each, arguments.model) for each in inferencers)], _call)
    for answer in (publisher, *told):
        if isinstance(answer, ParamsyncError) and not isinstance(answer, CallError):
            raise answer
    if arguments.json:
        sys.stdout.write(to_json(report(address, publisher, servers, told)))
    else:
        _show(publisher, servers, told)
    for answer in ([publisher] if expected else []) + told:
        if isinstance(answer, ParamsyncError):
            complain(f"paramsync status: {answer}")
    return not any(isinstance(answer, ParamsyncError) for answer in told)


def _asking(inferencer: Inferencer, model: str) -> Callable[[], Any]:
    return lambda: inferencer.report(model)


def _call(ask: Callable[[], Any]) -> Any:
    return ask()


def _show(publisher: Any, servers: Sequence[str], told: Sequence[Any]) -> None:
    with importing():  # after the calls: who asks for JSON does without
        from paramsync.cli.formatting import console
        from paramsync.cli.overview import StatusTable, rows, workers
    several = len(servers) > 1
    shown = [row for server, answer in zip(servers, told, strict=True) for row in rows(server, answer)]
    if not several:  # why the only one does not answer is told below
        shown = [row for row in shown if not row.lost]
    training = None if isinstance(publisher, ParamsyncError) else publisher
    screen = console()
    now = time.time()
    notes = workers(dict(zip(servers, told, strict=True)), now)
    screen.print(StatusTable(shown, now, trainer=training, several=several, notes=notes))
    screen.file.flush()
