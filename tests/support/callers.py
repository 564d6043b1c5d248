"""A caller that asks again and again, and notes calls that fail and versions that go back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from tests.support.inferencers import LONG


class Caller:
    """Takes versions from `ask` on a thread of its own, until `end`."""

    def __init__(self, ask: Callable[[], Iterator[int]]) -> None:
        self.answered = 0
        self.wrong: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ask,))
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(LONG)
        assert not self._thread.is_alive()

    def _run(self, ask: Callable[[], Iterator[int]]) -> None:
        last = 0
        with contextlib.closing(ask()) as versions:  # type: ignore[type-var]
            while not self._over.is_set():
                try:
                    version = next(versions)
                except Exception as error:  # noqa: BLE001, it is what the test is about
                    self.wrong.append(f"{ask}: {error!r}")
                    return
                if version < last:
                    self.wrong.append(f"{version} after {last}")
                last = version
                self.answered += 1
