"""Memory-bound work on a few threads: what numpy and checksums do to large buffers without holding the interpreter."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

THREADS = min(4, os.cpu_count() or 1)
"""More do not read memory any faster."""


def each(work: Callable[[T], None], items: Iterable[T], *, threads: int = THREADS) -> None:
    """Call `work` with every item, on this thread and `threads` - 1 others. Returns when all is done.

    The first error ends the work soon, and is raised here. The threads live as long as the call: starting them costs
    about a tenth of a millisecond, so small work is done with `threads=1`.
    """
    source = iter(items)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def take() -> None:
        while not errors:
            with lock:
                item = next(source, None)
            if item is None:
                return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001, raised again by the caller's thread
                errors.append(error)

    others = [threading.Thread(target=take, name="parallel", daemon=True) for _ in range(threads - 1)]
    try:
        for other in others:
            other.start()
        take()
        for other in others:
            other.join()
    except BaseException as error:  # an interrupt: nobody works on when this has returned
        errors.append(error)
        for other in others:
            if other.ident is not None:
                other.join()
        raise
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # else the error, its traceback and this frame would keep each other alive
