"""Trial: a process in which a graph is built and called before any worker has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

from paramsync.errors import GraphError

from ..processes.channel import ClosedError
from ..processes.messages import GraphMessage, VersionMessage
from .child import ChildProcess
from .template import Template

TRIAL_SECONDS = 60.0  # in which a graph is built and called once
_POLL_SECONDS = 0.1  # between two times that whoever waits for that is asked whether to go on


class Trial:
    """May end, hang or grow: nothing is answered there."""

    def __init__(self, template: Template, word: int) -> None:
        """`word` is the descriptor of the workers' shared memory. Raises OSError where it does not start."""
        self._process = ChildProcess(template, "trial", descriptors=[word])

    def built(self, graph: GraphMessage, content: int) -> tuple[str, frozenset[str]]:
        """The digest of a graph, whose file is that descriptor, and the parameters of which it looks up rows. Raises
        GraphError."""
        answer = self._process.channel.ask("graph", graph, descriptors=[content])
        digest, embeddings = self._result(answer, "built", "building the graph")
        return digest, embeddings

    def called(self, version: VersionMessage, files: Sequence[int], poll: Callable[[], object]) -> None:
        """Have it map a version, which has these files, and call the graph. Raises GraphError, and what `poll` raises,
        which is called now and then meanwhile."""
        answer = self._process.channel.ask("version", version, descriptors=files)
        self._result(answer, "called once", "calling the graph once", poll)

    def close(self) -> None:
        self._process.kill()

    def _result(self, answer: Future[Any], done: str, doing: str, poll: Callable[[], object] = lambda: None) -> Any:
        end = time.monotonic() + TRIAL_SECONDS
        try:
            while not wait([answer], timeout=_POLL_SECONDS).done:
                poll()
                if time.monotonic() > end:
                    raise GraphError(f"the graph was not {done} within {TRIAL_SECONDS:g} s")
            return answer.result()
        except ClosedError as error:
            raise self._process.fault(doing) from error
