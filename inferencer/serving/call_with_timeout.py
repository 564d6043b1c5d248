"""A call that a file system may never answer, made where it holds up neither its caller nor the end of the process."""

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
    """What it returns or raises, on a thread that is given up after ten seconds: then it raises SyncError.

    A thread of asyncio's own would be waited for at the end of the process.
    """
    answer: Future[_T] = Future()
    threading.Thread(target=_run, args=(call, answer), name=what, daemon=True).start()
    waiting = asyncio.wrap_future(answer)
    await asyncio.wait([waiting], timeout=_SECONDS)
    if waiting.cancel():  # the answer too
        raise SyncError(f"{what}: expected the file system to answer within {_SECONDS:g} s, found that it does not")
    return await waiting


def _run(call: Callable[[], _T], answer: Future[_T]) -> None:
    with contextlib.suppress(InvalidStateError):  # nobody waits any more
        try:
            answer.set_result(call())
        except InvalidStateError:
            raise
        except Exception as error:  # noqa: BLE001, it is raised where it is waited for
            answer.set_exception(error)
