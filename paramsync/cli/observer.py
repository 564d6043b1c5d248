"""Follows a trainer and an inferencer from outside, and writes down in the ledger what they do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from paramsync.cli.ledger import Ledger
from paramsync.cli.prober import HeldOut, Prober
from paramsync.errors import CallError
from paramsync.rpc.client import Inferencer, Predictor, Stream, Trainer
from paramsync.v1 import sync_pb2 as pb

_AGAIN_SECONDS = 0.5
_Message = TypeVar("_Message", pb.Version, pb.Event)


class Observer:
    """Three threads: one listens to each program, one asks for predictions. Started and stopped once, by one thread."""

    def __init__(
        self, trainer: Trainer, inferencer: Inferencer, predictor: Predictor, held_out: HeldOut, ledger: Ledger,
        *, model: str, input_name: str,
    ) -> None:  # fmt: skip
        self._trainer = trainer
        self._inferencer = inferencer
        self._ledger = ledger
        self._model = model
        self._prober = Prober(predictor, held_out, ledger, model=model, input_name=input_name)
        self._stopping = threading.Event()

    def start(self) -> None:
        listeners = (
            ("trainer", lambda: self._listen(self._trainer.watch, self._ledger.published)),
            ("inferencer", lambda: self._listen(lambda: self._inferencer.watch(self._model), self._happened)),
        )
        for name, listen in listeners:
            threading.Thread(target=listen, name=f"listen-{name}", daemon=True).start()
        self._prober.start()

    def look(self) -> None:
        """Ask both for their status. Who does not answer keeps the last one: their processes are watched elsewhere."""
        with contextlib.suppress(CallError):
            self._ledger.training(self._trainer.status())
        with contextlib.suppress(CallError):
            for status in self._inferencer.status(self._model):
                self._ledger.model(status)

    def stop(self) -> None:
        """Predictions first, so that none fails because its server ends; then a last look. Closing the clients ends
        the listeners."""
        self._prober.stop()
        self._stopping.set()
        self.look()

    def _happened(self, event: pb.Event) -> None:
        if event.kind == pb.Event.SWAPPED:
            self._prober.ring()
            self._ledger.swapped(event)

    def _listen(self, watch: Callable[[], Stream[_Message]], hear: Callable[[_Message], None]) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(CallError):
                for message in watch():
                    hear(message)
            self._stopping.wait(_AGAIN_SECONDS)
