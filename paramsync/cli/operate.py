"""`paramsync pin`, `unpin`, `rollback`, `label`, `unlabel`, `workers replace` and `watch`; `sync` of a bucket."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Sequence

from paramsync.cli.formatting import duration, from_then_on, to_json
from paramsync.cli.process import check_reader, complain, interruptible
from paramsync.cli.servers import ServerChange, ask_all, connected, tell
from paramsync.errors import CallError, ParamsyncError, SettingsError
from paramsync.host.files import line
from paramsync.remote.bucket import is_address
from paramsync.rpc.client import Inferencer, short
from paramsync.rpc.server import plain
from paramsync.v1 import sync_pb2 as pb

_LOOK_SECONDS = 0.5  # the time between two checks whether the reader of our output has left
_AGAIN_SECONDS = 1.0  # the time between two calls to a server that does not answer

_EVENTS = {
    pb.Event.FOUND: "found",
    pb.Event.RESTORED: "restored",
    pb.Event.SWAPPED: "serves",
    pb.Event.QUARANTINED: "refused",
}
_Ask = Callable[[Inferencer, Namespace], pb.ModelStatus]
_CHANGES: dict[str, _Ask] = {
    "pin": lambda inferencer, given: inferencer.pin(given.model, given.version, serve_at=given.at),
    "unpin": lambda inferencer, given: inferencer.unpin(given.model, serve_at=given.at),
    "label": lambda inferencer, given: inferencer.label(given.model, given.label, given.version),
    "unlabel": lambda inferencer, given: inferencer.unlabel(given.model, given.label),
}


def run(arguments: Namespace) -> bool:
    """Return True if every server made the change."""
    if is_address(getattr(arguments, "model", "")):
        return of_fleet(arguments)
    with connected(arguments) as inferencers:
        if arguments.command == "watch":
            _watch(inferencers, arguments)
        if arguments.command == "workers":
            return _replace_workers(inferencers, arguments)
        changes = [ServerChange(inferencer, arguments.model) for inferencer in inferencers]
        if arguments.command == "rollback":
            return _roll_back(changes, arguments)
        ask = _CHANGES[arguments.command]
        ask_all(changes, lambda change: change.run(lambda: ask(change.inferencer, arguments)))
        sentence = _labels if "label" in arguments.command else _pinned
        return tell(arguments, changes, lambda change, status: sentence(status))


def of_fleet(arguments: Namespace) -> bool:
    """Change the operators' choices for all followers of a bucket."""
    from paramsync.remote import fleet  # here, because most operators have no bucket

    address, command = arguments.model, arguments.command
    if command == "watch":
        raise SettingsError(f"expected a model of a server, found the address of a bucket, {address}")
    if arguments.servers:
        raise SettingsError("--server: expected the name of a model with it; an address changes all followers")
    choices = {
        "pin": lambda: fleet.pin(address, arguments.version, arguments.at),
        "unpin": lambda: fleet.pin(address, None, arguments.at),
        "rollback": lambda: fleet.roll_back(address, arguments.at),
        "sync": lambda: fleet.sync(address, arguments.at),
        "label": lambda: fleet.label(address, arguments.label, arguments.version),
        "unlabel": lambda: fleet.label(address, arguments.label, None),
    }
    dry = command == "rollback" and arguments.dry_run
    choose = fleet.preview if dry else fleet.choose
    state = interruptible(lambda: choose(address, choices[command]()))
    labels = ", ".join(f"{label} is version {number}" for label, number in sorted(state.labels.items()))
    pinned = "follow the newest version" if state.pinned is None else f"serve version {state.pinned}"
    text = (
        f"{address}: all followers {'would ' if dry else ''}{pinned}{from_then_on(state.move)}; {labels or 'no labels'}"
    )
    serve_at = None if state.move is None else state.move.at
    facts = {"address": address, "pinned": state.pinned, "labels": dict(state.labels), "serve_at": serve_at}
    sys.stdout.write(to_json(facts) if arguments.json else f"{line(text)}\n")
    return True


def _replace_workers(inferencers: Sequence[Inferencer], arguments: Namespace) -> bool:
    """Replace the workers of one server after the other. Stops at the first worker that cannot be replaced."""
    for inferencer in inferencers:
        at = f"{inferencer.address} " if len(inferencers) > 1 else ""
        for replaced in inferencer.replace_workers():
            who = f"process {replaced.after} in the place of {replaced.before}"
            text = line(f"{at}worker {replaced.number}: {who}, {duration(replaced.seconds)}") + "\n"
            report = {"server": inferencer.address, **plain(replaced)}
            sys.stdout.write(to_json(report) if arguments.json else text)
            sys.stdout.flush()
    return True


def _roll_back(changes: Sequence[ServerChange], arguments: Namespace) -> bool:
    """Print which version each server goes back to, then request exactly that version."""
    ask_all(changes, lambda change: change.run(lambda: change.inferencer.status(arguments.model)[0]))
    if arguments.dry_run:
        return tell(arguments, changes, lambda change, status: _way_back(status))
    named = [(change, change.status) for change in changes if change.status is not None]
    if not arguments.json:
        for change, status in named:
            server = f"{change.inferencer.address} " if len(changes) > 1 else ""
            sys.stdout.write(f"{line(server + _way_back(status))}\n")
        sys.stdout.flush()
    ask_all(named, lambda pair: pair[0].run(lambda: _back(pair[0].inferencer, arguments, pair[1])))
    return tell(arguments, changes, lambda change, status: _pinned(status))


def _back(inferencer: Inferencer, given: Namespace, status: pb.ModelStatus) -> pb.ModelStatus:
    number = status.rollback_to if status.HasField("rollback_to") else None
    return inferencer.rollback(given.model, number, serve_at=given.at)


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


_News = pb.Event | ParamsyncError | Sequence[pb.ModelStatus]
"""An event; the error of a server that does not answer; or the models of a server that answers again."""


def _watch(inferencers: Sequence[Inferencer], arguments: Namespace) -> None:
    """Print events until Ctrl-C. If one of several servers does not answer, call it again. Raises all other errors."""
    news: queue.SimpleQueue[tuple[str, _News]] = queue.SimpleQueue()
    ended = threading.Event()

    def listen(inferencer: Inferencer) -> None:
        address, lost = inferencer.address, False
        while not ended.is_set():
            try:
                # Ask for the status first: a stopped process would accept the stream but never send anything.
                models = inferencer.status(arguments.model)
                if lost:
                    news.put((address, models))
                lost = False
                for event in inferencer.watch(arguments.model):
                    news.put((address, event))
                error: ParamsyncError = CallError(f"inferencer at {address} ended the watch", "UNAVAILABLE")
            except ParamsyncError as failed:
                error = failed
            if not lost:
                news.put((address, error))
            lost = True
            ended.wait(_AGAIN_SECONDS)

    for inferencer in inferencers:
        threading.Thread(target=listen, args=(inferencer,), daemon=True).start()
    try:
        while True:
            check_reader()
            with contextlib.suppress(queue.Empty):
                _tell(*news.get(timeout=_LOOK_SECONDS), arguments, several=len(inferencers) > 1)
    finally:
        ended.set()


def _tell(address: str, news: _News, arguments: Namespace, *, several: bool) -> None:
    if isinstance(news, ParamsyncError):
        if not several or not isinstance(news, CallError):
            raise news
        complain(f"paramsync watch: {address} lost: {short(news, address)}; the others are watched on")
    elif not isinstance(news, pb.Event):
        serving = [f"{model.model} version {model.serving.number}" for model in news if model.HasField("serving")]
        complain(f"paramsync watch: {address} answers again; it serves {', '.join(serving) or 'no version'}")
    else:
        server = f"{address} " if several else ""
        text = to_json({"server": address, **plain(news)}) if arguments.json else f"{line(_event(news, server))}\n"
        sys.stdout.write(text)
        sys.stdout.flush()  # otherwise a pipe would get the event later


def _event(event: pb.Event, server: str) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    what = _EVENTS.get(event.kind, pb.Event.Kind.Name(event.kind).lower())
    sentence = f"{at} {server}{event.model}: version {event.version.number} (step {event.version.step}) {what}"
    if event.kind == pb.Event.SWAPPED:
        return f"{sentence}, restored in {duration(event.restore_seconds)}"
    return f"{sentence}: {event.reason}" if event.reason else sentence
