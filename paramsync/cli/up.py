"""`paramsync up`: a trainer and an inferencer on this machine, for as long as somebody wants to watch."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

from paramsync.cli.credentials import credentials
from paramsync.cli.display import UpScreen
from paramsync.cli.folders import fast_place, places, remove_left_behind, run_folder
from paramsync.cli.formatting import console, duration, share, to_json
from paramsync.cli.observer import HeldOut, Ledger, Observer, Prober
from paramsync.cli.programs import Child, check_tensorflow, end_all
from paramsync.errors import CallError, ParamsyncError
from paramsync.program.process import ending_signals
from paramsync.rpc.addresses import HOST, address, check_ports, free_port
from paramsync.rpc.client import Credentials, Inferencer, Predictor, Trainer

_MODEL, _INPUT = "digits", "image"
_READY_SECONDS = 180.0  # a small machine takes its time to import TensorFlow
_END_SECONDS = 15.0
_SHOW_SECONDS = 0.25
_READY_LOOK_SECONDS = 0.05  # so that the first version is asked before the second comes


class _EndedError(Exception):
    """Somebody wants the end, or a child has ended, and there is nothing to show yet."""


def run(arguments: Namespace) -> bool:
    """True where nothing failed."""
    check_tensorflow()
    check_ports(
        HOST,
        {
            "--port": arguments.port,
            "--rest-port": arguments.rest_port,
            "--control-port": arguments.control_port,
            "--trainer-port": arguments.trainer_port,
        },
    )
    arguments.trainer_port = arguments.trainer_port or free_port(HOST)  # the inferencer, which starts first, is told it
    ledger, faults = Ledger(), []
    people = console(stderr=arguments.json)
    children: list[Child] = []
    for place in places():
        remove_left_behind(place)
    with _set_by_signals() as stop, run_folder(fast_place()) as folder:
        try:
            with UpScreen(people, store=f"{folder}/store") as screen:
                _watch(arguments, children, folder, ledger, screen, stop)
        except _EndedError:
            pass  # what was wrong with a child is told below
        except ParamsyncError as error:
            faults.append(str(error))
        finally:
            faults += end_all(children, seconds=_END_SECONDS)
    faults += [f"a prediction failed: {ledger.last_failure}"] if ledger.last_failure else []
    for fault in faults:
        sys.stderr.write(f"paramsync up: {fault}\n")
    summary = ledger.summary()
    if arguments.json:
        sys.stdout.write(to_json(summary))
    else:
        people.print(_sentences(summary), soft_wrap=not people.is_terminal)
    return not faults


def _inferencer(arguments: Namespace, folder: Path) -> Child:
    options = ["--model", f"{_MODEL}={folder / 'store'}", "--state", str(folder / "inferencer")]
    options += ["--port", str(arguments.port), "--rest-port", str(arguments.rest_port)]
    options += ["--control-port", str(arguments.control_port)]
    options += ["--trainer", address(HOST, arguments.trainer_port)]
    return Child("inferencer", options, log=folder / "inferencer.log")


def _trainer(arguments: Namespace, folder: Path) -> Child:
    options = ["--store", str(folder / "store"), "--state", str(folder / "state")]
    options += ["--held-out", str(folder / "held_out.npz"), "--every-seconds", "0.5"]
    return Child("trainer", [*options, "--control-port", str(arguments.trainer_port)], log=folder / "trainer.log")


def _watch(
    arguments: Namespace, children: list[Child], folder: Path, ledger: Ledger, screen: UpScreen, stop: threading.Event
) -> None:
    """From their start until somebody wants the end, the time is over or one of them ends by itself."""
    seconds: float | None = arguments.seconds
    with contextlib.ExitStack() as stack:
        trainer, inferencer, predictor = _wait_until_ready(arguments, children, folder, screen, stop, stack)
        screen.say(f"its page, to see and steer it: http://{children[0].addresses()['HTTP']}/")
        held_out = HeldOut.read(folder / "held_out.npz")
        prober = Prober(predictor, held_out, ledger, model=_MODEL, input_name=_INPUT)
        observer = Observer(trainer, inferencer, prober, ledger, model=_MODEL)
        observer.start()
        show_at = began = time.monotonic()
        try:
            while not stop.is_set() and (seconds is None or time.monotonic() < began + seconds):
                if any(child.ended for child in children):
                    return
                observer.run_once()
                if time.monotonic() >= show_at:
                    show_at = time.monotonic() + _SHOW_SECONDS
                    observer.look()
                    screen.show(ledger)
        finally:
            observer.stop()


def _wait_until_ready(
    arguments: Namespace,
    children: list[Child],
    folder: Path,
    screen: UpScreen,
    stop: threading.Event,
    stack: contextlib.ExitStack,
) -> tuple[Trainer, Inferencer, Predictor]:
    """Start one after the other and wait for the first version to serve. Raises ParamsyncError where it does not.

    The trainer comes second, so that what is served and shown begins with a network that has learnt nothing yet.
    """
    deadline = time.monotonic() + _READY_SECONDS

    def wait(what: str) -> None:
        if any(child.ended for child in children):
            raise _EndedError
        if time.monotonic() > deadline:
            raise ParamsyncError(
                f"still {what} after {_READY_SECONDS:g} s; " + "\n".join(map(Child.last_lines, children))
            )
        screen.wait(what)
        if stop.wait(_READY_LOOK_SECONDS):
            raise _EndedError

    children.append(inferencer := _inferencer(arguments, folder))
    while not inferencer.addresses():
        wait("waiting for the inferencer to start")
    children.append(trainer := _trainer(arguments, folder))
    while not trainer.addresses():
        wait("waiting for the trainer to start")
    shown = Credentials(token=credentials().token)  # of the environment, which both have too; by TLS nobody is called
    clients = (
        stack.enter_context(Trainer(trainer.addresses()["control"], shown)),
        stack.enter_context(Inferencer(inferencer.addresses()["control"], shown)),
        stack.enter_context(Predictor(inferencer.addresses()["predictions"], shown)),
    )
    while not (_serves(clients[2]) and (folder / "held_out.npz").exists()):
        wait("waiting for the first version to serve")
    return clients


def _serves(predictor: Predictor) -> bool:
    try:
        return predictor.serves(_MODEL)
    except CallError:
        return False


@contextlib.contextmanager
def _set_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM and a closed terminal set, as often as they come."""
    wanted = threading.Event()
    before = {number: signal.signal(number, lambda *_: wanted.set()) for number in ending_signals()}
    try:
        yield wanted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sentences(summary: Mapping[str, float | int | None]) -> str:
    accuracies = (share(summary[f"{which}_accuracy"]) for which in ("first", "last"))
    fresh = summary["freshness_ms_p50"]
    answered = "" if fresh is None else f"; a step was answered from {duration(fresh / 1000)} after its end (median)"
    return (
        f"{summary['published']} versions published, {summary['served']} served; "
        f"{summary['predictions']} predictions, {summary['failed']} failed\n"
        "accuracy {} at first, {} at last{}".format(*accuracies, answered)
    )
