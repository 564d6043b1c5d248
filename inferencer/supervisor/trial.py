"""Trial: a process in which a graph is built and called before any worker has it."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from typing import Any

from paramsync.errors import GraphError

from ..processes.channel import ClosedError
from .child import ChildProcess
from .shared import SharedGraph, SharedVersion
from .template import Template

TRIAL_SECONDS = 60.0  # in which a graph is built and called once


class Trial:
    """May end, hang or grow: nothing is answered there."""

    def __init__(self, template: Template, word: int) -> None:
        """`word` is the descriptor of the workers' shared memory. Raises OSError where it does not start."""
        self._process = ChildProcess(template, "trial", descriptors=[word])

    def built(self, graph: SharedGraph) -> tuple[str, frozenset[str]]:
        """Its digest, and the parameters of which it looks up rows. Raises GraphError."""
        answer = self._process.channel.ask("graph", graph.message, descriptors=[graph.content])
        digest, embeddings = self._result(answer, "built")
        return digest, embeddings

    def called(self, version: SharedVersion) -> None:
        """Have it map the version and call the graph. Raises GraphError."""
        answer = self._process.channel.ask("version", version.message, descriptors=version.files)
        self._result(answer, "called once")

    def close(self) -> None:
        self._process.kill()

    def _result(self, answer: Future[Any], what: str) -> Any:
        try:
            return answer.result(TRIAL_SECONDS)
        except LateError as error:
            raise GraphError(f"the graph was not {what} within {TRIAL_SECONDS:g} s") from error
        except ClosedError as error:
            raise self._process.ended(f"the graph ended the process in which it was to be {what}") from error
