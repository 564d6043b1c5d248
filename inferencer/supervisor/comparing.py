"""Comparing: finds the parameters that changed most between two versions. Compares one pair at a time, because each
comparison reads both versions whole."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paramsync.cli.graph_files import shown_names, variables_of
from paramsync.errors import BusyError, RequestError
from paramsync.store.differences import EDGES, Difference, differences
from paramsync.store.store import Store

from ..protocols.page import messages

_MOST = 100  # most parameters in the answer
_SECONDS = 60.0
_SHARE = 0.25  # seconds of the budget that grow back each second
_NAME = 300  # most characters of a name


class Comparing:
    """Compares versions. Any thread may call it.

    All comparisons share a budget of `seconds`, which grows back by a quarter of a second each second. Repeated
    requests therefore cannot keep a processor or a disk busy.
    """

    def __init__(self, *, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = self._left = seconds
        self._clock = clock
        self._looked = clock()
        self._thread = ThreadPoolExecutor(1, "comparing")
        self._lock = threading.Lock()  # guards `_left`, `_looked` and the fields below
        self._asker: str | None = None
        self._gone = False
        self._began = 0.0

    def ask(self, store: Path, old: int, new: int, asker: str = "") -> Future[bytes]:
        """Compare two versions. The answer is JSON, see docs/reference.md. `asker` identifies the caller for `leave`.

        Raises BusyError while another pair is compared, and while the budget is used up.
        """
        with self._lock:
            if self._asker is not None:
                raise BusyError(
                    "two versions are being compared already, of which one pair is at a time; try again soon"
                )
            now = self._clock()
            self._left = min(self._seconds, self._left + _SHARE * (now - self._looked))
            self._looked = now
            if self._left <= 0:
                raise BusyError(
                    f"versions were compared for long just now: try again in {math.ceil(-self._left / _SHARE) + 1} s,"
                    " or with paramsync diff"
                )
            self._asker, self._gone, self._began = asker, False, now
        return self._thread.submit(self._run, store, old, new)

    def leave(self, asker: str) -> None:
        """Give up the comparison that this asker waits for."""
        with self._lock:
            self._gone = self._gone or asker == self._asker

    def _run(self, store: Path, old: int, new: int) -> bytes:
        try:
            return self._compared(Store(store), old, new)
        finally:
            with self._lock:
                self._left -= self._clock() - self._began
                self._asker = None

    def _compared(self, store: Store, old: int, new: int) -> bytes:
        end = self._clock() + self._seconds

        def advance(_: int) -> None:
            if self._gone:
                raise RequestError("the comparison was given up: whoever asked for it left")
            if self._clock() > end:
                raise RequestError(
                    f"the comparison took longer than {self._seconds:g} s: paramsync diff takes as long as it takes"
                )

        before, after = store.find(old), store.find(new)
        found = differences(store, before, after, threads=1, advance=advance)
        variables = variables_of(store, before) | variables_of(store, after)
        names = shown_names((one.name, variables.get(one.name)) for one in found)
        kinds = {kind: sum(one.kind == kind for one in found) for kind in dict.fromkeys(one.kind for one in found)}
        rows = [_of(one, names[one.name]) for one in found if one.kind != "unchanged"][:_MOST]
        return messages.text({"kinds": kinds, "histogram_edges": EDGES, "parameters": rows})


def _of(difference: Difference, shown: str) -> dict[str, Any]:
    fields = {**asdict(difference), "name": difference.name[:_NAME], "shown": shown[:_NAME]}
    del fields["dtype_before"]
    return {field: None if _is_unwritable(value) else value for field, value in fields.items()}


def _is_unwritable(value: object) -> bool:
    """True for NaN and infinity, which JSON cannot express."""
    return isinstance(value, float) and not math.isfinite(value)
