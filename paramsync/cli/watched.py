"""Keeps what a program said last: asks again when its stream of events says so, and every few seconds.

A stream rings a bell and carries nothing; a lost event costs latency only. Whoever is lost is asked again every second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from paramsync.errors import CallError, ParamsyncError

POLL_SECONDS = 5.0
_AGAIN_SECONDS = 1.0  # where it is lost
_LEAST_SECONDS = 0.1  # between two questions, however much happens

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Last(Generic[_Answer]):
    """What was answered last, and when, as `time.monotonic` counts; None before the first time."""

    answer: _Answer | None = None
    at: float = 0.0
    error: ParamsyncError | None = None
    """Why it does not answer now."""
    lost_at: float = 0.0


class Watched(Generic[_Answer]):
    """One program. Two threads of its own ask and listen; any thread may read `last`, which is replaced as a whole.

    The threads end at their next step once `close` was called and the client is closed.
    """

    def __init__(
        self,
        ask: Callable[[], _Answer],
        events: Callable[[], Iterable[object]],
        news: threading.Event,
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """`news` is set whenever `last` is another."""
        self.last: Last[_Answer] = Last()
        self._ask = ask
        self._events = events
        self._news = news
        self._poll_seconds = poll_seconds
        self._bell = threading.Event()
        self._closing = threading.Event()

    def start(self) -> None:
        for work in (self._asking, self._listening):
            threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._bell.set()

    def run_once(self) -> None:
        """Ask."""
        try:
            last = Last(self._ask(), time.monotonic())
        except ParamsyncError as error:
            lost_at = self.last.lost_at if self.last.error else time.monotonic()
            last = replace(self.last, error=error, lost_at=lost_at)
        if not self._closing.is_set():
            self.last = last
            self._news.set()

    def _asking(self) -> None:
        while not self._closing.wait(_LEAST_SECONDS if self.last.at else 0.0):
            self.run_once()
            self._bell.wait(_AGAIN_SECONDS if self.last.error else self._poll_seconds)
            self._bell.clear()

    def _listening(self) -> None:
        while not self._closing.is_set():
            try:
                for _ in self._events():
                    self._bell.set()
            except CallError:
                pass
            except ParamsyncError:  # it knows no such model, which whoever asks is told too
                return
            self._bell.set()  # it may be lost
            self._closing.wait(_AGAIN_SECONDS)
