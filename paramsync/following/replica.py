"""Replica: the versions of one model in the memory of this process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from paramsync.errors import SettingsError
from paramsync.following.residents import RESIDENT, Residents
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.inference.resident import Resident
from paramsync.remote.bucket import is_address
from paramsync.remote.child import follow
from paramsync.sources.opening import open_source
from paramsync.sources.source import Source, Verification
from paramsync.store.store import Store
from paramsync.version import Version


class Replica(Residents[Resident]):
    """The serving copy of one model, in this process. Any number of threads may predict at once, without a lock."""

    def __init__(
        self,
        model: str,
        source: Source[Resident] | Store | Path | str,
        *,
        resident: int = RESIDENT,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        graph: Path | str | None = None,
        verification: Verification = "auto",
        allowed: Collection[str] = (),
        trust: Sequence[Path | str] = (),
        trainer: str | None = None,
    ) -> None:
        """The last `resident` versions that served stay in memory, and all labelled versions.

        `source` is a Source, a Store or its path, or a bucket's address such as s3://bucket/models/digits. For a
        bucket, a separate process copies new versions into a local store in memory, as long as this replica lives.
        `trainer` is the address of the trainer's control port. With it, the process looks at the bucket as soon as the
        trainer says that a new version is there. The arguments from `inputs` to `trust` are passed to `open_source`;
        they do not apply to a Source.
        """
        if isinstance(source, str) and is_address(source):
            source = follow(source, self, trainer=trainer)
        elif trainer is not None:
            raise SettingsError(f"trainer: expected the address of a bucket with it, found {source}")
        if isinstance(source, (Store, Path, str)):
            path = source.path if isinstance(source, Store) else Path(source)
            source = open_source(
                path,
                inputs=inputs,
                outputs=outputs,
                graph=graph,
                verification=verification,
                allowed=allowed,
                trust=trust,
            )
        super().__init__(model, source, resident=resident, parts=lambda resident: (resident.graph, resident.parameters))

    def predict(
        self,
        inputs: Mapping[str, Any],
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Collection[str] = (),
        version: int | None = None,
        label: str = "",
    ) -> tuple[dict[str, tf.Tensor], Version]:
        """Compute with exactly one version. Returns the outputs and the version.

        Raises as `take` and `Resident.predict` do.
        """
        resident = self.take(version, label)
        return resident.predict(inputs, signature=signature, outputs=outputs), resident.version
