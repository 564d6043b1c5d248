"""Lanes: questions that wait for the same call, and what is known of each."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field
from time import perf_counter

from paramsync.inference import execute
from paramsync.inference.questions import Answer, Question

from .latency import Latency

Timed = tuple[list[Answer | Exception], float]
"""To each question its answer, or why there is none, and how many seconds it took."""


@dataclass(eq=False, slots=True)
class Asked:
    """A question, and who waits for its answer."""

    question: Question
    rows: int
    size: int
    lane: Lane
    future: asyncio.Future[Answer]
    deadline: float | None


@dataclass(eq=False, slots=True)
class Lane:
    """Questions that may go in one call: of one version, signature and set of outputs, with rows of one shape."""

    key: Hashable
    pace: Latency
    large: bool
    joined: bool
    waiting: dict[Asked, None] = field(default_factory=dict)  # in the order they came
    running: int = 0
    gathering: asyncio.TimerHandle | None = None


def timed(questions: list[Question]) -> Timed:
    """Any thread."""
    began = perf_counter()
    found = execute.answers(questions)
    return found, perf_counter() - began


def size_of(question: Question) -> int:
    """Bytes of its inputs; of strings only what points at them."""
    return sum([array.nbytes for array in question.inputs.values()])
