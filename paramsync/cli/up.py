"""`paramsync up`: runs a trainer and an inferencer on this machine, and shows their status until Ctrl-C."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.text import Text

from paramsync.cli.formatting import NOTHING, console, duration, share, to_json
from paramsync.cli.live import Polled, show
from paramsync.cli.overview import BAD, GOOD, lag, status_view
from paramsync.cli.programs import Child, check_tensorflow, end_all
from paramsync.cli.settings import credentials
from paramsync.cli.top import sparkline
from paramsync.errors import CallError, ParamsyncError
from paramsync.host.files import locked_folder
from paramsync.program.process import ending_signals, set_from_handler
from paramsync.rpc.addresses import HOST, address, check_ports, free_port
from paramsync.rpc.client import Credentials, Inferencer, Predictor, Trainer

_MODEL, _INPUT = "digits", "image"
_READY_SECONDS = 180.0  # how long the start may take: a small machine is slow to import TensorFlow
_END_SECONDS = 15.0  # how long the programs may take to end
_SHOW_SECONDS = 0.25  # the time between two updates of the view
_LINE_SECONDS = 2.0  # the time between two lines if the output is not a terminal
_READY_LOOK_SECONDS = 0.05  # the time between two checks; short, so that requests reach the first version
_SAMPLE, _BATCH = 500, 100  # number of held-out examples that each version answers, and that one request has
_ASK_SECONDS = 0.05  # the time between two requests
_BARS = 40  # accuracies that a sparkline shows


class _EndedError(Exception):
    """A signal arrived, or a child ended, before the first version served."""


def run(arguments: Namespace) -> bool:
    """Return True if nothing failed."""
    check_tensorflow()
    ports = ("port", "rest_port", "control_port", "trainer_port")
    check_ports(HOST, {f"--{name.replace('_', '-')}": vars(arguments)[name] for name in ports})
    arguments.trainer_port = arguments.trainer_port or free_port(HOST)  # the inferencer, which starts first, needs it
    people = console(stderr=arguments.json)
    children: list[Child] = []
    faults: list[str] = []
    view = None
    with (
        _set_by_signals() as stop,
        temporary_folder(fast_place()) as folder,
    ):
        try:
            with contextlib.ExitStack() as clients:
                trainer, inferencer, predictor = _start(arguments, children, folder, people, stop, clients)
                page = f"http://{children[0].addresses()['HTTP']}/"
                people.print(f"page: {page}", soft_wrap=True)
                view = UpView(trainer, inferencer, Prober(predictor, inferencer, HeldOut.read(folder / "held_out.npz")))
                ends_at = time.monotonic() + (arguments.seconds or math.inf)

                def goes_on() -> bool:
                    ended = any(child.ended for child in children)
                    return not (ended or stop.is_set() or time.monotonic() > ends_at)

                show(view, view.programs, seconds=_SHOW_SECONDS, screen=people, goes_on=goes_on)
                view.prober.close()
        except _EndedError:
            pass  # `end_all` returns the reason
        except ParamsyncError as error:
            faults.append(str(error))
        finally:
            faults += end_all(children, seconds=_END_SECONDS)
    if view is not None and view.prober.last_failure:
        faults.append(f"a prediction failed: {view.prober.last_failure}")
    for fault in faults:
        sys.stderr.write(f"paramsync up: {fault}\n")
    summary = Summary() if view is None else view.summary()
    if arguments.json:
        sys.stdout.write(to_json(asdict(summary)))
    else:
        people.print(summary.sentences(), soft_wrap=True)
    return not faults


def _start(
    arguments: Namespace,
    children: list[Child],
    folder: Path,
    people: Console,
    stop: threading.Event,
    clients: contextlib.ExitStack,
) -> tuple[Trainer, Inferencer, Predictor]:
    """Start both programs and wait until the first version serves. Raises ParamsyncError if that takes too long.

    The inferencer starts first, so that it serves the first version, which has learnt nothing yet.
    """
    deadline = time.monotonic() + _READY_SECONDS

    def wait_until(ready: Callable[[], object], what: str) -> None:
        people.print(f"waiting for {what}", soft_wrap=True)
        while not ready():
            if time.monotonic() > deadline:
                logs = "\n".join(map(Child.last_lines, children))
                raise ParamsyncError(f"still waiting for {what} after {_READY_SECONDS:g} s; {logs}")
            if any(child.ended for child in children) or stop.wait(_READY_LOOK_SECONDS):
                raise _EndedError

    options = ["--model", f"{_MODEL}={folder / 'store'}", "--state", str(folder / "inferencer")]
    options += ["--port", str(arguments.port), "--rest-port", str(arguments.rest_port)]
    options += ["--control-port", str(arguments.control_port), "--trainer", address(HOST, arguments.trainer_port)]
    children.append(inferencer := Child("inferencer", options, log=folder / "inferencer.log"))
    wait_until(inferencer.addresses, "the inferencer to start")
    options = ["--store", str(folder / "store"), "--state", str(folder / "state"), "--every-seconds", "0.5"]
    options += ["--held-out", str(folder / "held_out.npz"), "--control-port", str(arguments.trainer_port)]
    children.append(trainer := Child("trainer", options, log=folder / "trainer.log"))
    wait_until(trainer.addresses, "the trainer to start")
    shown = Credentials(token=credentials().token)  # without TLS; both programs read the token from the environment
    control, predictions = (inferencer.addresses()[name] for name in ("control", "predictions"))
    training = clients.enter_context(Trainer(trainer.addresses()["control"], shown))
    serving = clients.enter_context(Inferencer(control, shown))
    predictor = clients.enter_context(Predictor(predictions, shown))
    wait_until(lambda: _serves(predictor) and (folder / "held_out.npz").exists(), "the first version to serve")
    return training, serving, predictor


def _serves(predictor: Predictor) -> bool:
    try:
        return predictor.serves(_MODEL)
    except CallError:
        return False


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder for both programs. Also removes the folders of processes that were killed."""
    folder, lock = locked_folder("paramsync-up-", parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextlib.contextmanager
def _set_by_signals() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C, by SIGTERM, or if the terminal is closed."""
    wanted = threading.Event()
    before = {number: signal.signal(number, lambda *_: set_from_handler(wanted)) for number in ending_signals()}
    try:
        yield wanted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Examples that are not trained on, in batches."""

    images: Sequence[np.ndarray]
    labels: Sequence[np.ndarray]

    @classmethod
    def read(cls, path: Path) -> HeldOut:
        with np.load(path) as file:
            images, labels = file["x"][:_SAMPLE], file["y"][:_SAMPLE]
        cuts = range(_BATCH, len(images), _BATCH)
        return cls(np.split(images, cuts), np.split(labels, cuts))


@dataclass(slots=True)
class AnsweredVersion:
    """A version that answered: seconds from the end of its step to the answer, if known; right answers by batch."""

    freshness: float | None
    right: dict[int, int] = field(default_factory=dict)


class Prober:
    """Sends the held-out examples to the model in batches, and measures the accuracy and freshness of each version."""

    def __init__(self, predictor: Predictor, inferencer: Inferencer, held_out: HeldOut) -> None:
        self.predictions = 0
        self.failed = 0
        self.last_failure = ""
        self.versions: dict[int, AnsweredVersion] = {}
        self.accuracies: list[float] = []  # one for each version that has answered all batches
        self._predictor = predictor
        self._inferencer = inferencer
        self._held_out = held_out
        self._batch = 0
        self._closed = False

    def run_once(self) -> None:
        """Send the next batch. If a new version answers, send the other batches right away, before the next swap."""
        while self._ask():
            pass

    def _ask(self) -> bool:
        """Send one batch. Returns True if the version that answered has not answered all batches yet."""
        batch, batches = self._batch, len(self._held_out.labels)
        try:
            prediction = self._predictor.predict(_MODEL, {_INPUT: self._held_out.images[batch]})
        except ParamsyncError as error:
            if not self._closed:
                self.failed += 1
                self.last_failure = str(error)
            return False
        answered_at = time.time()
        self.predictions += 1
        self._batch = (batch + 1) % batches
        version = self.versions.get(prediction.version)
        if version is None:
            version = AnsweredVersion(self._freshness(prediction.version, answered_at))
            self.versions[prediction.version] = version
        if len(version.right) == batches:
            return False
        (scores,) = prediction.outputs.values()
        version.right[batch] = int((scores.argmax(axis=1) == self._held_out.labels[batch]).sum())
        if len(version.right) < batches:
            return True
        self.accuracies.append(sum(version.right.values()) / sum(map(len, self._held_out.labels)))
        return False

    def close(self) -> None:
        """Do not count calls that fail from now on, because they were cancelled."""
        self._closed = True

    def _freshness(self, number: int, answered_at: float) -> float | None:
        """Return the seconds from the end of the version's step to its first answer.

        Returns None if another version serves already, or the inferencer does not tell its status.
        """
        try:
            (status,) = self._inferencer.status(_MODEL)
        except CallError:
            return None
        serving = status.serving
        return answered_at - serving.step_done_at if serving.number == number else None


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run, with the fields of `paramsync up --json`."""

    published: int = 0
    served: int = 0
    predictions: int = 0
    failed: int = 0
    first_accuracy: float | None = None
    last_accuracy: float | None = None
    freshness_ms_p50: float | None = None

    def sentences(self) -> str:
        fresh = self.freshness_ms_p50
        answered = (
            "" if fresh is None else f"; a step was answered from {duration(fresh / 1000)} after its end (median)"
        )
        return (
            f"{self.published} versions published, {self.served} served;"
            f" {self.predictions} predictions, {self.failed} failed\n"
            f"accuracy {share(self.first_accuracy)} at first, {share(self.last_accuracy)} at last{answered}"
        )


class UpView:
    """The status of both programs, and the prober's results."""

    def __init__(self, trainer: Trainer, inferencer: Inferencer, prober: Prober) -> None:
        self.prober = prober
        self._address = inferencer.address
        self._trainer = Polled(trainer.status, _SHOW_SECONDS)
        self._inferencer = Polled(partial(inferencer.report, _MODEL), _SHOW_SECONDS)
        self.programs: list[Polled[Any]] = [self._trainer, self._inferencer, Polled(prober.run_once, _ASK_SECONDS)]
        self._began = time.monotonic()
        self._next_line = 0.0

    def drawn(self) -> RenderableType:
        summary, prober = self.summary(), self.prober
        title = Text.assemble(("paramsync up", "bold"), f"  {time.monotonic() - self._began:.0f} s  Ctrl-C ends")
        status = status_view(self._trainer.last.answer, {self._address: self._inferencer.last}, time.time())
        counts = Text(f"{prober.predictions} predictions, {prober.failed} failed", BAD if prober.failed else "")
        fresh = summary.freshness_ms_p50
        answered = "" if fresh is None else f", fresh in {duration(fresh / 1000)}"
        accuracy = Text(f"accuracy {share(summary.last_accuracy)}{answered}  ")
        accuracy.append(sparkline(prober.accuracies[-_BARS:]), GOOD)
        return Group(title, "", status, "", counts, accuracy)

    def lines(self) -> Iterator[str]:
        elapsed = time.monotonic() - self._began
        if elapsed < self._next_line:
            return
        self._next_line = elapsed + _LINE_SECONDS
        training, answer = self._trainer.last.answer, self._inferencer.last.answer
        parts = [f"{elapsed:.0f} s"]
        if training is not None:
            loss = f"{training.loss:.4f}" if training.HasField("loss") else NOTHING
            parts += [f"step {training.step}", f"loss {loss}", f"{training.steps_per_second:.0f} steps/s"]
        for model in () if answer is None else answer.models:
            parts += [f"published {model.published.number}", f"serving {model.serving.number}", f"lag {lag(model)}"]
        yield ", ".join([*parts, f"accuracy {share(self.summary().last_accuracy)}", f"failed {self.prober.failed}"])

    def objects(self) -> Iterator[object]:
        yield from ()  # --json prints only the summary at the end

    def summary(self) -> Summary:
        training, prober = self._trainer.last.answer, self.prober
        fresh = [seen.freshness for seen in list(prober.versions.values()) if seen.freshness is not None]
        accuracies = prober.accuracies
        return Summary(
            published=max(training.publishes if training else 0, len(prober.versions)),
            served=len(prober.versions),
            predictions=prober.predictions,
            failed=prober.failed,
            first_accuracy=accuracies[0] if accuracies else None,
            last_accuracy=accuracies[-1] if accuracies else None,
            freshness_ms_p50=round(statistics.median(fresh) * 1000, 2) if fresh else None,
        )


_MEMORY = Path("/dev/shm")


def fast_place(memory: Path = _MEMORY, *, room: int = 256 * 2**20) -> Path:
    """Return the fastest place for temporary files: memory if it has room, else the system's temporary directory."""
    elsewhere = Path(tempfile.gettempdir())
    try:
        free = os.statvfs(memory)
    except OSError:
        return elsewhere
    usable = os.access(memory, os.W_OK | os.X_OK) and free.f_bavail * free.f_frsize >= room
    return memory if usable else elsewhere
