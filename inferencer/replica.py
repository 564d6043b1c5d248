"""Replica: a graph and the versions resident in memory. Knows how to restore one aside, swap to it and predict."""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import tensorflow as tf

from paramsync import files
from paramsync.bundle import Bundle
from paramsync.errors import (
    CorruptCheckpointError,
    GraphError,
    NotServingError,
    UnfinishedMetaError,
    UnknownVersionError,
)
from paramsync.graphs.graph import DEFAULT_SIGNATURE, Graph, TensorSpec
from paramsync.graphs.parameters import check_entries, shared
from paramsync.graphs.sources.meta_graphs import capture_meta
from paramsync.store import Store
from paramsync.version import Version

_log = logging.getLogger("paramsync.replica")
RESIDENT = 2  # the serving version and the one before it, so that going back is a swap

Verification = Literal["checksums", "sizes"]
"""What is checked of parameters before they serve: all their bytes, or only what the index says of them."""


@dataclass(frozen=True, eq=False)
class Resident:
    """A version in memory, complete and checked. Immutable: a request that holds it is answered from it alone."""

    version: Version
    graph: Graph
    parameters: tuple[tf.Tensor, ...]

    def predict(
        self,
        inputs: Mapping[str, tf.Tensor | np.ndarray],
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Collection[str] = (),
    ) -> dict[str, tf.Tensor]:
        """The outputs named, or all of them. Raises UnknownSignatureError, InputError."""
        self.graph.check_inputs(signature, inputs, outputs)
        tensors = {name: tf.convert_to_tensor(value) for name, value in inputs.items()}
        return self.graph(self.parameters, tensors, signature=signature, outputs=outputs)


@dataclass(frozen=True, eq=False)
class _Leaving:
    """What a version in memory was made of, kept until no request holds that version any more."""

    resident: weakref.ref[Resident]
    graph: Graph
    parameters: tuple[tf.Tensor, ...]


class Replica:
    """The serving copy of one model.

    `restore`, `swap` and `tend` belong to one thread, the follower's. `predict` and the properties may be used from any
    number of threads at once and take no lock: they read one reference, once.
    """

    def __init__(
        self,
        model: str,
        store: Store,
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        verification: Verification = "checksums",
        allowed: Collection[str] = (),
    ) -> None:
        """`inputs` and `outputs` name tensors ("x:0"): needed where TensorFlow's Saver wrote the store.

        `allowed` names ops that a graph may use although they are not known to be safe.
        """
        self.model = model
        self._verification = verification
        self._store = store
        self._meta_inputs = tuple(inputs)
        self._meta_outputs = tuple(outputs)
        self._allowed = frozenset(allowed)
        self._residents: tuple[Resident, ...] = ()  # the serving one first
        self._leaving: list[_Leaving] = []
        self._untouched: tuple[Resident, Bundle] | None = None  # restored without a look at its data
        self._graphs: dict[str, Graph] = {}

    @property
    def residents(self) -> tuple[Resident, ...]:
        """What is in memory, the serving version first."""
        return self._residents

    def serving(self) -> Resident:
        """The serving version. Raises NotServingError."""
        residents = self._residents
        if not residents:
            raise NotServingError(self.model, f"no version from store {self._store.path} serves yet")
        return residents[0]

    def take(self, version: int | None = None) -> Resident:
        """The serving version, or the resident one with this number. Raises NotServingError, UnknownVersionError."""
        residents = self._residents
        if version is None or not residents:
            return self.serving()
        for one in residents:
            if one.version.number == version:
                return one
        raise UnknownVersionError(f"model {self.model!r}", version, [one.version.number for one in residents])

    def predict(
        self,
        inputs: Mapping[str, tf.Tensor | np.ndarray],
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Collection[str] = (),
        version: int | None = None,
    ) -> tuple[dict[str, tf.Tensor], Version]:
        """Answers from exactly one version, and says which.

        Raises NotServingError, UnknownVersionError, UnknownSignatureError, InputError.
        """
        one = self.take(version)
        return one.predict(inputs, signature=signature, outputs=outputs), one.version

    def restore(self, version: Version) -> Resident:
        """Brings a version in beside what serves and checks it; nothing that serves changes.

        With "sizes" the parameters are not touched: what the index says of them is checked against the graph and the
        files, and it takes as long for a large model as for a small one. Only our own publisher is believed so far:
        what has no record of it is always checked by its checksums.

        Raises CorruptCheckpointError, ParameterError, UnsafeGraphError, GraphError, StoreError, OSError.
        """
        graph = self._graph_of(version)
        bundle = self._store.open(version)
        check_entries(graph, bundle.entries, where=f"version {version.number}")
        trusted = self._verification == "sizes" and bool(version.checksum)
        if not trusted:  # its pages are there, then, before the first request needs them
            bundle.verify((spec.name for spec in graph.parameters), finite=True)
        resident = Resident(version, graph, shared(graph, bundle))
        self._untouched = (resident, bundle) if trusted else None
        return resident

    def swap(self, restored: Resident) -> None:
        """Makes it the serving version: one assignment. The version that served stays resident."""
        before = self._residents
        others = [one for one in before if one.version.number != restored.version.number]
        self._residents = now = (restored, *others)[:RESIDENT]
        self._leaving += [_Leaving(weakref.ref(one), one.graph, one.parameters) for one in before if one not in now]

    def tend(self) -> None:
        """What need not be done before a swap, and must not be done by a thread that serves. Call it now and then.

        Brings what was swapped in untouched into memory, and lets go of versions that are resident no more. Freeing
        one takes milliseconds, and whoever drops the last reference pays: a request that holds a version holds the
        Resident, and the parameters are held here until no Resident is left.
        """
        untouched, self._untouched = self._untouched, None
        if untouched is not None and untouched[0] in self._residents:
            resident, bundle = untouched
            try:
                bundle.prefault(spec.name for spec in resident.graph.parameters)
            except CorruptCheckpointError as error:
                _log.warning(
                    "%s: version %d was damaged after it was restored: %s", self.model, resident.version.number, error
                )
        self._leaving = [one for one in self._leaving if one.resident() is not None]

    def _graph_of(self, version: Version) -> Graph:
        if version.graph:
            return self._known(version.graph, lambda: self._published_graph(version))
        meta = Path(f"{self._store.prefix(version)}.meta")
        if not (self._meta_inputs and self._meta_outputs):
            raise GraphError(
                f"version {version.number} names no graph: give --inputs and --outputs to take it from {meta}"
            )
        try:
            content = files.content(meta, limit=files.MAX_MESSAGE)
        except FileNotFoundError as error:
            raise UnfinishedMetaError(_needs(version, meta)) from error
        return self._known(
            hashlib.sha256(content).hexdigest(),
            lambda: capture_meta(
                content, path=meta, inputs=self._meta_inputs, outputs=self._meta_outputs, allowed=self._allowed
            ),
        )

    def _published_graph(self, version: Version) -> Graph:
        path = self._store.graph_file(version.graph)
        try:
            graph = Graph.load(path, allowed=self._allowed)
        except FileNotFoundError as error:
            raise GraphError(_needs(version, path)) from error
        if graph.digest != version.graph:
            raise GraphError(f"{path}: expected the graph {version.graph}, found {graph.digest}")
        return graph

    def _known(self, key: str, build: Callable[[], Graph]) -> Graph:
        graph = self._graphs.pop(key, None) or build()
        self._graphs[key] = graph  # last in the order of use
        while len(self._graphs) > RESIDENT:
            del self._graphs[next(iter(self._graphs))]
        return graph

    def warm(self, restored: Resident) -> None:
        """Calls each signature of a graph that is new here once: the first call prepares it, many times slower.

        A graph that cannot compute on made-up inputs may well do so on real ones, so that this never fails.
        """
        if any(one.graph is restored.graph for one in self._residents):
            return
        for name, signature in restored.graph.signatures.items():
            try:
                inputs = {spec.name: _blank(spec) for spec in signature.inputs.values()}
                restored.graph(restored.parameters, inputs, signature=name)
            except Exception as error:  # noqa: BLE001, see above
                _log.debug("%s: %s was not called beforehand: %s", self.model, name, error)


def _needs(version: Version, path: Path) -> str:
    return f"version {version.number} needs the graph file {path}, which is not there"


def _blank(spec: TensorSpec) -> tf.Tensor:
    """Zeros, or empty strings; one of what there may be any number of."""
    return tf.zeros([1 if size is None else size for size in spec.shape or ()], tf.as_dtype(spec.dtype))
