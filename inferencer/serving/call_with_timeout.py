"""Calls that a file system may never answer, on threads that hold up neither their caller nor the process's end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TypeVar

from paramsync.errors import SyncError

_SECONDS = 10.0
_T = TypeVar("_T")


async def aside(call: Callable[[], _T], what: str) -> _T:
    """The result of a call on a thread. After ten seconds the thread is given up: raises SyncError.

    The interpreter would wait for a thread of asyncio's own pool at the end of the process.
    """
    answer: Future[_T] = Future()
    threading.Thread(target=_run, args=(call, answer), name=what, daemon=True).start()
    waiting = asyncio.wrap_future(answer)
    await asyncio.wait([waiting], timeout=_SECONDS)
    if waiting.cancel():  # which cancels `answer` too
        raise SyncError(f"{what}: expected the file system to answer within {_SECONDS:g} s, found that it does not")
    return await waiting


def _run(call: Callable[[], _T], answer: Future[_T]) -> None:
    with contextlib.suppress(InvalidStateError):  # the caller has given up
        try:
            answer.set_result(call())
        except InvalidStateError:
            raise
        except Exception as error:  # noqa: BLE001, it is raised by `aside`
            answer.set_exception(error)
