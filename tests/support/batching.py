"""A batcher for tests: its threads compute only when a test releases them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from inferencer.batching.batcher import Batcher
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident
from tests.support.questions import LONG, Held, Told, question, turns, until


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 2 * LONG))

    return run


class Setting:
    """A batcher whose threads are held until a test releases them."""

    def __init__(self, threads: int = 4, **options: Any) -> None:
        self.threads = Held(threads)
        self.metrics = Told()
        self.batcher = Batcher(self.threads, threads, self.metrics, **options)

    def ask(self, *questions: Question, **options: Any) -> list[asyncio.Task[Answer]]:
        return [asyncio.ensure_future(self.batcher.answer(one, **options)) for one in questions]

    async def warm(self, of: Resident) -> None:
        """Ask questions until one is answered without a thread."""
        handed_over = -1
        while handed_over < len(self.threads.gates):
            handed_over = len(self.threads.gates)
            [asked] = self.ask(question(of, 4.0))
            await until(asked.done, self.threads)
            assert totals(asked) == [4.0 * of.version.number]

    async def answered(self, *asked: asyncio.Task[Answer]) -> None:
        """Wait for all answers, releasing the threads: after a slow call, the next calls run on threads, too."""
        await until(lambda: all_done([*asked]), self.threads)

    async def over(self, *asked: asyncio.Task[Answer]) -> list[tuple[str, int, int]]:
        """Wait for all answers, releasing the threads. Returns all calls; see Told."""
        await until(lambda: all_done([*asked]) and not self.batcher.held, self.threads)
        await turns()
        self.batcher.close()
        return self.metrics.told


def all_done(asked: list[asyncio.Task[Answer]]) -> bool:
    return all(one.done() for one in asked)


def totals(task: asyncio.Task[Answer]) -> list[float]:
    found: list[float] = task.result()["total"].tolist()
    return found
