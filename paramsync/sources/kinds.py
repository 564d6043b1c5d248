"""open_source(): detects which kind of source a directory is, at each look again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from paramsync.errors import SettingsError, StoreError
from paramsync.inference.resident import Resident
from paramsync.sources import diagnosis
from paramsync.sources.checkpoints import CheckpointSource
from paramsync.sources.saved_models import SavedModelsSource, numbered
from paramsync.sources.source import Bell, Look, ProgressCallback, Source, Verification
from paramsync.sources.watch import Place, Watch
from paramsync.store import layout
from paramsync.version import Version


def open_source(
    path: Path | str,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    graph: Path | str | None = None,
    verification: Verification = "auto",
    allowed: Collection[str] = (),
) -> Source:
    """The source in a directory, which need not exist yet, nor show yet of which kind it is.

    - Checkpoints, where there is a file `checkpoint`. Of a Saver, `inputs` and `outputs` name tensors ("x:0") of the
      graphs in its `.meta` files; otherwise `graph` is a graph file, or the directory of a SavedModel.
    - SavedModels in directories whose names are numbers, as TensorFlow Serving follows them.

    `allowed` names ops that a graph may use although they are not known to be safe, and
    `verification` is "auto", "checksums", or "sizes" to believe our own publisher. Raises SettingsError.
    """
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise SettingsError(
                "expected eager execution, found none: after tf.compat.v1.disable_eager_execution(), serve from another"
                " process; in tf.Graph().as_default(), do this outside"
            )
    if bool(inputs) != bool(outputs):
        raise SettingsError("expected inputs and outputs together, found one of them")
    if inputs and graph is not None:
        raise SettingsError("expected inputs and outputs, or a graph, found both")
    given = None if graph is None else Path(graph)
    checkpoints = CheckpointSource(
        Path(path), inputs=inputs, outputs=outputs, graph=given, verification=verification, allowed=allowed
    )
    told = "graph" if graph is not None else "inputs and outputs" if inputs else ""
    return _DetectedSource(Path(path), checkpoints, SavedModelsSource(Path(path), allowed=allowed), told)


class _DetectedSource:
    """A directory that is a source of one kind or the other, as its files show. See Source."""

    def __init__(self, path: Path, checkpoints: CheckpointSource, saved_models: SavedModelsSource, told: str) -> None:
        """`told` names the arguments that were given about the graph of checkpoints."""
        self.path = path
        self._told = told
        self._checkpoints = checkpoints
        self._saved_models = saved_models
        self._now: CheckpointSource | SavedModelsSource = checkpoints

    def look(self) -> Look:
        if self._now is self._checkpoints and (found := self._checkpoints.look()).latest is not None:
            return found  # it has the file `checkpoint`
        self._now = self._shown() or self._now
        if self._told and self._now is self._saved_models:
            wrong = f"expected checkpoints, found numbered SavedModels, which say themselves what {self._told} would"
            return Look(problem=StoreError(self.path, f"{wrong}: leave that out"))
        found = self._now.look()
        if found.latest is None and found.problem is None and (misplaced := diagnosis.misplaced(self.path)):
            return replace(found, problem=StoreError(self.path, misplaced))
        return found

    def _shown(self) -> CheckpointSource | SavedModelsSource | None:
        """The kind that the files show; None where they show none."""
        try:
            if layout.state_file(self.path).exists():
                return self._checkpoints
            return self._saved_models if numbered(self.path) else None
        except OSError:
            return None

    def identity(self, version: Version) -> Hashable:
        return self._now.identity(version)

    def restore(self, version: Version, tell: ProgressCallback) -> Resident:
        return self._now.restore(version, tell)

    def let_pages_go(self, idle: Sequence[Resident]) -> None:
        for one in (self._checkpoints, self._saved_models):  # versions of the kind it was before may be in memory still
            one.let_pages_go(idle)

    def tend(self, used: Sequence[Resident]) -> None:
        for one in (self._checkpoints, self._saved_models):
            one.tend(used)

    def prepare(self, serving: Resident) -> bool:
        return self._now.prepare(serving)

    def close(self) -> None:
        for one in (self._checkpoints, self._saved_models):
            one.close()

    def bell(self, ring: Callable[[], None]) -> Bell:
        return Watch(self._places, ring)

    def _places(self) -> list[Place]:
        return (self._shown() or self._now).places()
