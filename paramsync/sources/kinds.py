"""Detects which kind of source a directory is, at each look again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic

from paramsync.errors import StoreError
from paramsync.inference.view import InMemory, R
from paramsync.sources import diagnosis
from paramsync.sources.checkpoints import CheckpointSource
from paramsync.sources.saved_models import SavedModelsSource, numbered
from paramsync.sources.source import Bell, Look, ProgressCallback
from paramsync.sources.watch import Place, Watch
from paramsync.store import layout
from paramsync.version import Version


class DetectedSource(Generic[R]):
    """A directory that is a source of one kind or the other, as its files show. See Source."""

    def __init__(
        self, path: Path, checkpoints: CheckpointSource[R], saved_models: SavedModelsSource[R], told: str
    ) -> None:
        """`told` names the arguments that were given about the graph of checkpoints."""
        self.path = path
        self._told = told
        self._checkpoints = checkpoints
        self._saved_models = saved_models
        self._now: CheckpointSource[R] | SavedModelsSource[R] = checkpoints

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

    def _shown(self) -> CheckpointSource[R] | SavedModelsSource[R] | None:
        """The kind that the files show; None where they show none."""
        try:
            if layout.state_file(self.path).exists():
                return self._checkpoints
            return self._saved_models if numbered(self.path) else None
        except OSError:
            return None

    def identity(self, version: Version) -> Hashable:
        return self._now.identity(version)

    def restore(self, version: Version, tell: ProgressCallback) -> R:
        return self._now.restore(version, tell)

    def let_pages_go(self, idle: Sequence[InMemory]) -> None:
        for one in (self._checkpoints, self._saved_models):  # versions of the kind it was before may be in memory still
            one.let_pages_go(idle)

    def tend(self, used: Sequence[InMemory]) -> None:
        for one in (self._checkpoints, self._saved_models):
            one.tend(used)

    def bell(self, ring: Callable[[], None]) -> Bell:
        return Watch(self._places, ring)

    def _places(self) -> list[Place]:
        return (self._shown() or self._now).places()
