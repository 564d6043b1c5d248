"""A store whose versions differ in a share of their elements; mirrors, and a proxy that counts their requests."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bench import arrays, settings
from bench.arrays import Array
from bench.model import Model, Publications
from paramsync.cli.programs import Child
from paramsync.graphs.capturing import capture
from paramsync.remote import state
from paramsync.store.store import Store
from paramsync.version import Version
from tests.support.proxies import Proxy

NEVER = threading.Event()
_PATIENCE = 60.0
_PAUSE = 0.005


class Changing(Publications):
    """A store and its writer, with parameters that change a little from version to version."""

    def __init__(self, path: Path, size: int, tensors: int) -> None:
        super().__init__(path, capture(Model([np.zeros((1, 1), np.float32)])))
        self.values = arrays.random(arrays.shapes(size, tensors), seed=0)
        self._chance = np.random.default_rng(1)

    def change(self, share: float) -> Version:
        """Change this share of the elements a little, and publish all parameters."""
        self.change_values(share)
        return self.publish({f"part_{at:04}": array for at, array in enumerate(self.values)})

    def change_values(self, share: float) -> Sequence[Array]:
        """Change this share of the elements a little. Returns all parameters."""
        for array in self.values if share else ():
            changed = self._chance.random(array.shape, np.float32) < share
            array[changed] *= 1 + 1e-3 * self._chance.random(int(changed.sum()), np.float32)
        return self.values


class Counting(Proxy):
    """Counts requests by kind: LIST, STATE (a GET of the state), GET, HEAD, PUT, PART, POST and DELETE."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.sizes: list[int] = []  # the bytes of each answer
        super().__init__(settings.endpoint(), self._count)

    def forward(self, *call: Any) -> tuple[int, Any, bytes]:
        answer = super().forward(*call)
        self.sizes.append(len(answer[2]))
        return answer

    def _count(self, method: str, path: str) -> str:
        kind = "PART" if method == "PUT" and "partNumber=" in path else method
        kind = "DELETE" if path.endswith("?delete") else kind
        if method == "GET" and path.endswith(f"/{state.NAME}"):
            kind = "STATE"
        self.kinds["LIST" if method == "GET" and "list-type=" in path else kind] += 1
        return ""  # the proxy injects no fault


def mirror(stack: ExitStack, source: Path | str, target: Path | str, log: Path) -> Child:
    """Start `paramsync mirror`. Closing the stack ends the process."""
    child = Child("paramsync.cli", ["mirror", str(source), str(target), "--json"], log=log)
    stack.callback(child.wait, _PATIENCE)
    stack.callback(child.end)
    return child


def newest(store: Path) -> int | None:
    """Return the number of the newest version."""
    latest = Store(store).latest()
    return None if latest is None else latest.number


def wait(until: Callable[[], object], what: Callable[[], str]) -> None:
    """Call `until` every few milliseconds until it returns true. Raises TimeoutError; `what` names what is missing."""
    deadline = time.monotonic() + _PATIENCE
    while not until():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what()} did not come in {_PATIENCE:g} s")
        NEVER.wait(_PAUSE)
