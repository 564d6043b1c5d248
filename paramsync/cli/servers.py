"""Calls all servers of a command at the same time, and prints their answers as text or JSON."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from paramsync.cli.arguments import INFERENCER, TRAINER
from paramsync.cli.formatting import duration, to_json
from paramsync.cli.live import Last
from paramsync.cli.process import complain
from paramsync.cli.settings import SERVER, credentials, servers
from paramsync.errors import CallError, NotReachableError, ParamsyncError, SettingsError, SyncError
from paramsync.host.files import line
from paramsync.rpc.addresses import check_target, resolve
from paramsync.rpc.client import Inferencer
from paramsync.rpc.server import plain
from paramsync.v1 import sync_pb2 as pb

_SILENT_SECONDS = 60.0  # a bucket that has not answered for this long is reported

_Target = TypeVar("_Target")
_Answer = TypeVar("_Answer")


def _addresses(arguments: Namespace) -> dict[str, str]:
    """Return the control ports to ask, each once: from --server, else from PARAMSYNC_SERVER, else the default.

    The values are the names in the servers' certificates (`resolve`). Raises SettingsError for a wrong address.
    """
    if arguments.servers:
        return _read(arguments.servers) or {check_target(""): ""}
    try:
        return _read([servers()]) or {INFERENCER: ""}
    except SettingsError as error:
        raise SettingsError(f"{SERVER}: {error}") from error


def _read(texts: Sequence[str]) -> dict[str, str]:
    named = (part.strip() for text in texts for part in text.split(","))
    targets = [check_target(target) for target in named if target]
    return {address: name for target in targets for address, name in resolve(target).items()}


def trainer(arguments: Namespace, servers: Sequence[str]) -> tuple[str, bool]:
    """Return the trainer's address, and whether its absence is an error.

    Its absence is no error if only servers are named, because a host that only serves has no trainer.
    """
    return arguments.trainer or TRAINER, arguments.trainer is not None or list(servers) == [INFERENCER]


@contextlib.contextmanager
def connected(arguments: Namespace) -> Iterator[list[Inferencer]]:
    """A client for each server. Leaving the context ends calls that still wait."""
    with contextlib.ExitStack() as stack:
        shown = credentials(arguments)
        named = _addresses(arguments).items()
        yield [stack.enter_context(Inferencer(address, shown, name=name)) for address, name in named]


def ask_all(targets: Sequence[_Target], ask: Callable[[_Target], _Answer]) -> list[_Answer | ParamsyncError]:
    """Call `ask` for all targets at once. Returns the answer or error of each target, in order.

    Ctrl-C does not wait for the calls: their threads are daemons, and closing the clients ends them.
    """
    answers: dict[int, _Answer | ParamsyncError] = {}

    def run(number: int) -> None:
        try:
            answers[number] = ask(targets[number])
        except ParamsyncError as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(targets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[number] for number in range(len(targets))]


def report(
    address: str,
    publisher: Last[pb.PublisherStatus],
    servers: Mapping[str, Last[pb.GetStatusResponse]],
    bucket: Mapping[str, object] | None,
) -> dict[str, Any]:
    """Return the last answers of a trainer and of inferencers as JSON values, and `bucket`, which is JSON already."""
    status = None if publisher.error else publisher.answer
    return {
        "trainer": {
            "address": address,
            "error": None if publisher.error is None else str(publisher.error),
            "status": None if status is None else plain(status),
        },
        "servers": [_server_report(server, last) for server, last in servers.items()],
        "shares": [asdict(share) for share in shares(servers)],
        "bucket": bucket,
    }


def _server_report(address: str, last: Last[pb.GetStatusResponse]) -> dict[str, Any]:
    answer = None if last.error else last.answer
    return {
        "address": address,
        "error": None if last.error is None else str(last.error),
        "models": None if answer is None else [plain(model) for model in answer.models],
        "workers": None if answer is None else [plain(worker) for worker in answer.workers],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many servers serve one version of a model. If `version` is None, these servers serve no version.

    `share` is the share among servers that answer and have the model. `skew_seconds` is the time from the first to the
    last server's swap, if at least two servers swapped at the version's moment.
    """

    model: str
    version: int | None
    servers: int
    share: float
    skew_seconds: float | None


def shares(servers: Mapping[str, Last[pb.GetStatusResponse]]) -> Iterator[Share]:
    """Yield the versions that each model serves, the newest first. A server that does not answer does not count."""
    fleet: defaultdict[str, list[pb.ModelStatus]] = defaultdict(list)
    for last in servers.values():
        for model in last.answer.models if last.answer is not None and last.error is None else ():
            fleet[model.model].append(model)
    for name, models in fleet.items():
        versions: defaultdict[int | None, list[pb.ModelStatus]] = defaultdict(list)
        for model in models:
            versions[model.serving.number if model.HasField("serving") else None].append(model)
        for version in sorted(versions, key=lambda number: -1 if number is None else number, reverse=True):
            some = versions[version]
            late = [model.swap_skew_seconds for model in some if model.HasField("swap_skew_seconds")]
            yield Share(
                model=name,
                version=version,
                servers=len(some),
                share=len(some) / len(models),
                skew_seconds=max(late) - min(late) if len(late) > 1 and version is not None else None,
            )


@dataclass(slots=True)
class ServerChange:
    """A change of one model at one server, and its outcome."""

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
    """Print one line for each change. Returns True if all are done."""
    several = len({change.inferencer.address for change in changes}) > 1
    for change in changes:
        address = change.inferencer.address
        if arguments.json:
            sys.stdout.write(to_json(_change_report(change)))
        elif change.status is not None:
            sys.stdout.write(f"{line((f'{address} ' if several else '') + sentence(change, change.status))}\n")
    sys.stdout.flush()
    for change in changes:
        if change.error is not None:
            reason = f"{change.error}{_next_step(change.error)}"
            if several and change.inferencer.address not in reason:
                reason = f"{change.inferencer.address} {change.model}: {reason}"
            complain(f"paramsync {arguments.command}: {reason}")
    return all(change.error is None for change in changes)


def _next_step(error: ParamsyncError) -> str:
    """Return advice to append to an error's text; empty if there is none, or the text contains it."""
    cause = error.__cause__ if isinstance(error, SyncError) else error
    if not isinstance(cause, CallError) or isinstance(cause, NotReachableError):
        return ""
    if cause.code == "DEADLINE_EXCEEDED":
        return "; see `paramsync status`, or wait longer with --timeout S"
    return "; what served goes on serving, see `paramsync status`" if isinstance(error, SyncError) else ""


def _change_report(change: ServerChange) -> dict[str, object]:
    status = change.status
    return {
        "server": change.inferencer.address,
        "model": change.model if status is None else status.model,
        "seconds": round(change.seconds, 4),
        "error": None if change.error is None else str(change.error),
        "status": None if status is None else plain(status),
    }


def bucket_faults(bucket: pb.Bucket, now: float) -> Iterator[str]:
    """Yield why versions do not arrive from a bucket, how long it has not answered, and whether it replaces the first.

    Yields nothing if all is well.
    """
    silent = now - bucket.answered_at if bucket.HasField("answered_at") else 0.0
    words = [f"no answer for {duration(silent)}"] if silent > _SILENT_SECONDS else []
    words += [bucket.reason.removeprefix(f"{bucket.address}: ")] if bucket.reason else []
    if words:
        yield f"bucket {bucket.address}: {': '.join(words)}"
    if (first := bucket.addresses.partition(",")[0]) not in ("", bucket.address):
        yield f"bucket {bucket.address} is followed in place of {first}: the log says why"
