"""`paramsync pin`, `unpin`, `rollback`, `label`, `unlabel`, `watch`: what an operator has inferencers do, or tell."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Sequence

from paramsync.cli.changes import ServerChange, tell
from paramsync.cli.formatting import duration, plain, to_json
from paramsync.cli.process import check_reader, complain
from paramsync.cli.servers import ask_all, connected, short
from paramsync.errors import CallError, ParamsyncError
from paramsync.host.files import line
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb

_LOOK_SECONDS = 0.5  # whether anybody reads
_AGAIN_SECONDS = 1.0  # until a server that is lost is asked again

_EVENTS = {
    pb.Event.FOUND: "found",
    pb.Event.RESTORED: "restored",
    pb.Event.SWAPPED: "serves",
    pb.Event.QUARANTINED: "refused",
}


def run(arguments: Namespace) -> bool:
    """True where every server has done it."""
    with connected(arguments) as inferencers:
        if arguments.command == "watch":
            _watch(inferencers, arguments)
        return _change(inferencers, arguments)


def _change(inferencers: Sequence[Inferencer], arguments: Namespace) -> bool:
    sentence = _labels if arguments.command in ("label", "unlabel") else _pinned
    changes = [ServerChange(inferencer, arguments.model) for inferencer in inferencers]
    if arguments.command == "rollback":
        return _roll_back(changes, arguments)
    ask_all(changes, lambda change: change.run(lambda: _ask(change.inferencer, arguments)))
    return tell(arguments, changes, lambda change, status: sentence(status))


def _ask(inferencer: Inferencer, arguments: Namespace) -> pb.ModelStatus:
    match arguments.command:
        case "pin":
            return inferencer.pin(arguments.model, arguments.version)
        case "unpin":
            return inferencer.unpin(arguments.model)
        case "label":
            return inferencer.label(arguments.model, arguments.label, arguments.version)
        case _:
            return inferencer.unlabel(arguments.model, arguments.label)


def _roll_back(changes: Sequence[ServerChange], arguments: Namespace) -> bool:
    """Says where each server goes back to, and has it go there, whatever comes to serve meanwhile."""
    ask_all(changes, lambda change: change.run(lambda: change.inferencer.status(arguments.model)[0]))
    if arguments.dry_run:
        return tell(arguments, changes, lambda change, status: _way_back(status))
    if not arguments.json:
        several = len(changes) > 1
        for change in changes:
            if change.status is not None:
                server = f"{change.inferencer.address} " if several else ""
                sys.stdout.write(f"{line(server + _way_back(change.status))}\n")
        sys.stdout.flush()
    named = [(change, change.status) for change in changes if change.status is not None]
    ask_all(named, lambda pair: pair[0].run(lambda: _back(pair[0].inferencer, arguments.model, pair[1])))
    return tell(arguments, changes, lambda change, status: _pinned(status))


def _back(inferencer: Inferencer, model: str, status: pb.ModelStatus) -> pb.ModelStatus:
    return inferencer.rollback(model, status.rollback_to if status.HasField("rollback_to") else None)


def _way_back(status: pb.ModelStatus) -> str:
    serving = f"version {status.serving.number}" if status.HasField("serving") else "no version"
    if not status.HasField("rollback_to"):
        return f"{status.model}: {serving} serves, and there is no version to go back to"
    why = "which served before" if status.rollback_served else "the next lower one, which has not served here"
    return f"{status.model}: back from {serving} to version {status.rollback_to}, {why}"


def _labels(status: pb.ModelStatus) -> str:
    labels = ", ".join(f"{label} is version {number}" for label, number in sorted(status.labels.items()))
    return f"{status.model}: {labels or 'no labels'}"


def _pinned(status: pb.ModelStatus) -> str:
    serving = f"version {status.serving.number} serves" if status.HasField("serving") else "no version serves yet"
    if status.HasField("pinned"):
        return f"{status.model}: pinned to version {status.pinned}; {serving}"
    return f"{status.model}: follows the newest version; {serving}"


def _watch(inferencers: Sequence[Inferencer], arguments: Namespace) -> None:
    """Until Ctrl-C. Raises the error of a server that is lost where it is the only one; of several it is told, and that
    one is back."""
    told: queue.SimpleQueue[tuple[str, pb.Event | ParamsyncError | Sequence[pb.ModelStatus]]] = queue.SimpleQueue()
    ended = threading.Event()

    def listen(inferencer: Inferencer) -> None:
        address, lost = inferencer.address, False
        while not ended.is_set():
            try:
                models = inferencer.status(
                    arguments.model
                )  # a server that is stopped opens the stream, and says nothing
                if lost:
                    told.put((address, models))
                lost = False
                for event in inferencer.watch(arguments.model):
                    told.put((address, event))
                error: ParamsyncError = CallError(f"inferencer at {address} ended the watch", "UNAVAILABLE")
            except ParamsyncError as failed:
                error = failed
            if not lost:
                told.put((address, error))
            lost = True
            ended.wait(_AGAIN_SECONDS)

    for inferencer in inferencers:
        threading.Thread(target=listen, args=(inferencer,), daemon=True).start()
    try:
        while True:
            check_reader()
            with contextlib.suppress(queue.Empty):
                _tell(*told.get(timeout=_LOOK_SECONDS), arguments, several=len(inferencers) > 1)
    finally:
        ended.set()


def _tell(
    address: str, what: pb.Event | ParamsyncError | Sequence[pb.ModelStatus], arguments: Namespace, *, several: bool
) -> None:
    if isinstance(what, ParamsyncError):
        if not several or not isinstance(what, CallError):
            raise what
        complain(f"paramsync watch: {address} lost: {short(what, address)}; the others are watched on")
    elif not isinstance(what, pb.Event):
        serving = [f"{model.model} version {model.serving.number}" for model in what if model.HasField("serving")]
        complain(f"paramsync watch: {address} answers again; it serves {', '.join(serving) or 'no version'}")
    else:
        server = f"{address} " if several else ""
        sys.stdout.write(
            to_json({"server": address, **plain(what)}) if arguments.json else f"{line(_event(what, server))}\n"
        )
        sys.stdout.flush()  # whoever reads waits for each


def _event(event: pb.Event, server: str) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    what = _EVENTS.get(event.kind, pb.Event.Kind.Name(event.kind).lower())
    sentence = f"{at} {server}{event.model}: version {event.version.number} (step {event.version.step}) {what}"
    if event.kind == pb.Event.SWAPPED:
        return f"{sentence}, restored in {duration(event.restore_seconds)}"
    return f"{sentence}: {event.reason}" if event.reason else sentence
