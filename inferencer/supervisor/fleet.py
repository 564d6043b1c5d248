"""Fleet: the worker processes of one server, the epochs that tell them what to serve, and the trials of graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..processes import shared_words
from ..processes.channel import Handler
from ..processes.shared_words import SharedWords
from .epochs import Epochs, Shown
from .listeners import Listeners
from .shared import SharedVersion
from .template import Template
from .trial import Trials
from .workers import Workers


class Fleet:
    """The workers, epochs and trials of one server. Any thread may use it."""

    def __init__(
        self,
        count: int,
        arguments: tuple[Any, ...],
        handlers: Mapping[str, Handler],
        look: Callable[[str | None], Sequence[Shown]],
        listeners: Listeners,
        template: Template,
    ) -> None:
        """`arguments` are passed to each worker. `handlers` answer the workers' requests. See Epochs for `look`. The
        caller closes `template`."""
        self.template = template
        words = SharedWords(shared_words.create())
        self.epochs = Epochs(words.epoch, look)
        self.workers = Workers(
            count,
            arguments,
            handlers,
            listeners,
            template,
            words,
            admit=self.epochs.admit,
            dismiss=self.epochs.dismiss,
        )
        self.trials = Trials(template, words)

    def start(self) -> None:
        """Start the workers and return once all listen. Raises the error of a worker that does not start."""
        self.epochs.change()
        self.workers.start()

    def prepare(self, version: SharedVersion, poll: Callable[[], object]) -> None:
        """Have every worker map a version, in addition to its current versions. A new graph is tried first.

        `poll` is called now and then during a trial. Raises the errors of Trials.call, Epochs.map and `poll`.
        """
        if not version.graph.works:
            self.trials.call(version, poll)
        self.epochs.map(version)

    def close(self) -> None:
        """End every worker."""
        self.workers.close()
        self.epochs.close()
