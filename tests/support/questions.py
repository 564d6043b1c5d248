"""Questions to versions made in memory, a batcher, and threads that compute only when a test releases them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from typing import Any

import numpy as np
import tensorflow as tf

from inferencer.batching.batcher import Batcher
from inferencer.serving.metrics import Metrics
from paramsync.graphs.capturing import Capture, capture
from paramsync.inference import batchable
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident
from tests.support.written import version

LONG = 30.0
ROWS, TABLE = "serving_default", "table"


class Rows(tf.Module):
    """Each row of the outputs depends on the same row of the inputs, and shows the version's number."""

    def __init__(self) -> None:
        super().__init__()
        self.number = tf.Variable(0.0)
        self.words = tf.Variable(tf.zeros([4, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"seen": x[:, 0] * 0.0 + self.number, "total": tf.reduce_sum(x, axis=-1) * self.number}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="places")])
    def table(self, places: tf.Tensor) -> dict[str, tf.Tensor]:
        """Looks up one of four places; for any other place, the kernel raises an error."""
        return {"found": tf.gather(self.words, places) + self.number}


_CAPTURED: list[Capture] = []


def resident(number: int, graph_number: int = 0) -> Resident:
    """A version whose parameters are its number. Each `graph_number` has its own graph; all compute the same."""
    while len(_CAPTURED) <= graph_number:
        module = Rows()
        _CAPTURED.append(capture(module, signatures={ROWS: module, TABLE: module.table}))
    graph = _CAPTURED[graph_number].graph
    parameters = tuple(tf.fill([size or 1 for size in one.shape or ()], float(number)) for one in graph.parameters)
    made = Resident(version(number), graph, parameters)
    batchable.examine(made)
    return made


def question(of: Resident, *values: float, columns: int = 1, outputs: tuple[str, ...] = ()) -> Question:
    """As many rows as values."""
    x = np.repeat(np.array(values, np.float32)[:, None], columns, axis=1)
    return Question("m", of, ROWS, {"x": x}, outputs)


def lookup(of: Resident, *places: int) -> Question:
    return Question("m", of, TABLE, {"places": np.array(places, np.int32)})


class Held(ThreadPoolExecutor):
    """Threads on which each piece of work waits for its own gate."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.gates: list[threading.Event] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        gate = threading.Event()
        self.gates.append(gate)

        def held() -> Any:
            assert gate.wait(LONG)
            return work(*arguments, **named)

        return super().submit(held)

    def release(self) -> None:
        """Open the gates of all work submitted so far."""
        for gate in self.gates:
            gate.set()


class Told(Metrics):
    """Records each call: the version, the number of requests, the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int, int]] = []

    def called(
        self, *, model: str, signature: str, version: str = "", requests: int, rows: int, seconds: float
    ) -> None:
        self.told.append((version, requests, rows))


async def turns(count: int = 3) -> None:
    """Let all coroutines run that are ready."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(look: Callable[[], bool], *release: Held) -> None:
    """Wait until `look` returns True, and release held work meanwhile."""

    async def looking() -> None:
        while not look():
            for one in release:
                one.release()
            await asyncio.sleep(0.001)

    await asyncio.wait_for(looking(), LONG)


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
        """Wait for all answers. Releases held work meanwhile, because further calls run on threads after a slow one."""
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
