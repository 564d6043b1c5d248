"""Runs calls that may hang, such as reads of a file system, without delaying the caller or the end of the process."""

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
    """Run a call on a thread of its own. After ten seconds, abandon the thread and raise SyncError.

    asyncio's own thread pool is not used, because the interpreter waits for its threads at the end of the process.
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
