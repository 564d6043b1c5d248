"""Our side of the benchmarks: a store that is published to, and restored from, as trainer and inferencer do."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from bench.arrays import Array
from paramsync.store.commit import StoreWriter
from paramsync.version import Version

if TYPE_CHECKING:
    from paramsync.graphs.capturing import Capture

KEEP = 2  # versions listed in a store; from KEEP + 2 publications on, its files are recycled
WARM_UPS = KEEP + 3


class Publications:
    """A store and its one writer."""

    def __init__(self, path: Path, captured: Capture | None = None, *, signing_key: Path | None = None) -> None:
        self._writer = StoreWriter(path, keep=KEEP, signing_key=signing_key)
        self._graph = ""
        if captured is not None:
            self._graph = captured.graph.digest
            self._writer.add_graph(self._graph, captured.graph.to_bytes())

    def publish(
        self,
        tensors: Mapping[str, Array],
        *,
        step: int = 0,
        unchanged: Collection[str] = (),
        finite: bool = False,
    ) -> Version:
        now = time.time()
        number = self._writer.next_number(step)
        version = Version(
            number=number, step=number, prefix=f"ckpt-{number}", graph=self._graph, step_done_at=now, snapshot_at=now
        )
        return self._writer.commit(version, tensors, unchanged=unchanged, finite=finite)

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Publications:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
