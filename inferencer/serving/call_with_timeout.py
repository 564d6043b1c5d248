"""Runs calls that a file system may never answer on threads that delay neither the caller nor the process's end."""

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
    """Run a call on a thread of its own. After ten seconds the thread is abandoned: raises SyncError.

    Threads of asyncio's own pool will not do: at the end of the process, the interpreter would wait for them.
    """
    answer: Future[_T] = Future()
    threading.Thread(target=_run, args=(call, answer), name=what, daemon=True).start()
    waiting = asyncio.wrap_future(answer)
    await asyncio.wait([waiting], timeout=_SECONDS)
    if waiting.cancel():  # also cancels `answer`
        raise SyncError(f"{what}: expected the file system to answer within {_SECONDS:g} s, found that it does not")
    return await waiting


def _run(call: Callable[[], _T], answer: Future[_T]) -> None:
    with contextlib.suppress(InvalidStateError):  # the caller has given up
        try:
            answer.set_result(call())
        except InvalidStateError:
            raise
        except Exception as error:  # noqa: BLE001, `aside` raises the error
            answer.set_exception(error)
