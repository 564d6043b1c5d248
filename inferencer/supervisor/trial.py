"""Trials: builds and calls each new graph in a process of its own before any worker gets the graph."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from paramsync.errors import GraphError

from ..processes.channel import ClosedError
from ..processes.shared_words import SharedWords
from .child import ChildProcess
from .shared import SharedGraph, SharedVersion
from .template import Template

TRIAL_SECONDS = 60.0  # limit for building a graph, and for calling it once
_POLL_SECONDS = 0.1  # the time between two calls of a caller's `poll`


class Trials:
    """Builds and calls graphs on trial. Any thread may use it, but only one thread at a time may try the same graph."""

    def __init__(self, template: Template, words: SharedWords) -> None:
        self._template = template
        self._words = words
        self._keys = itertools.count(1)

    def key(self) -> int:
        """Return a new key for a graph or a version: a different number at each call."""
        return next(self._keys)

    def graph(
        self, content: bytes, *, allowed: Sequence[str] = (), refused: Mapping[str, str] | None = None
    ) -> SharedGraph:
        """Make a graph that has not been tried yet."""
        file = os.memfd_create("graph")
        with os.fdopen(os.dup(file), "wb") as target:
            target.write(content)
        return SharedGraph(self.key(), file, tuple(allowed), dict(refused or {}))

    def build(self, graph: SharedGraph) -> tuple[str, frozenset[str]]:
        """Build a graph in a process of its own. Returns the graph's digest, and the names of its embeddings, which are
        parameters of which the graph only looks up rows.
        Raises GraphError, also if building takes too long, and the error of ChildProcess.fault if that process ends.
        """
        graph.trial = trial = ChildProcess(self._template, "trial", descriptors=[self._words.descriptor])
        try:
            answer = trial.channel.ask("graph", graph.message, descriptors=[graph.content])
            digest, embeddings = _result(trial, answer, "built", "building the graph")
        except BaseException:
            graph.trial = None
            trial.kill()
            raise
        return digest, embeddings

    def call(self, version: SharedVersion, poll: Callable[[], object]) -> None:
        """Call the graph of a version once, in the process that has built the graph. Then end that process.

        Raises GraphError, also if the call takes too long, the error of ChildProcess.fault if that process ends, and
        any error of `poll`.
        """
        graph = version.graph
        if graph.trial is None:
            self.build(graph)
        trial, graph.trial = graph.trial, None
        assert trial is not None
        try:
            answer = trial.channel.ask("version", version.message, descriptors=version.files)
            _result(trial, answer, "called once", "calling the graph once", poll)
        finally:
            trial.kill()
        graph.works = True


def _result(
    trial: ChildProcess, answer: Future[Any], done: str, doing: str, poll: Callable[[], object] = lambda: None
) -> Any:
    end = time.monotonic() + TRIAL_SECONDS
    try:
        while not wait([answer], timeout=_POLL_SECONDS).done:
            poll()
            if time.monotonic() > end:
                raise GraphError(f"the graph was not {done} within {TRIAL_SECONDS:g} s")
        return answer.result()
    except ClosedError as error:
        raise trial.fault(doing) from error
