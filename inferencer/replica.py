"""Replica: a graph and the versions resident in memory. Knows how to restore one aside, swap to it and predict."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from paramsync import dtypes
from paramsync.bundle import Bundle
from paramsync.errors import GraphError, NotServingError, ParameterError, UnknownVersionError
from paramsync.graphs.capture import capture_meta
from paramsync.graphs.graph import DEFAULT_SIGNATURE, Graph, described
from paramsync.graphs.tensors import alias
from paramsync.index import Entry
from paramsync.store import Store
from paramsync.version import Version

RESIDENT = 2  # the serving version and the one before it, so that going back is a swap
_CHUNK = 1 << 18  # elements looked at together when values are checked: small enough for a core's cache


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


class Replica:
    """The serving copy of one model.

    `restore` and `swap` belong to one thread, the follower's. `predict` and the properties may be used from any number
    of threads at once and take no lock: they read one reference, once.
    """

    def __init__(self, model: str, store: Store, *, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> None:
        """`inputs` and `outputs` name tensors ("x:0"): needed where TensorFlow's Saver wrote the store."""
        self.model = model
        self._store = store
        self._meta_inputs = tuple(inputs)
        self._meta_outputs = tuple(outputs)
        self._residents: tuple[Resident, ...] = ()  # the serving one first
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
        """Brings a version in beside what serves and checks all of it; nothing that serves changes.

        Raises CorruptCheckpointError, ParameterError, GraphError, StoreError, OSError.
        """
        graph = self._graph_of(version)
        bundle = self._store.open(version)
        _check_entries(version, graph, bundle.entries)
        names = [spec.name for spec in graph.parameters]
        bundle.verify(names)  # reads every byte, so the pages are there before the first request needs them
        return Resident(version, graph, tuple(_parameter(version, bundle, name) for name in names))

    def swap(self, restored: Resident) -> None:
        """Makes it the serving version: one assignment. The version that served stays resident."""
        others = [one for one in self._residents if one.version.number != restored.version.number]
        self._residents = (restored, *others)[:RESIDENT]

    def _graph_of(self, version: Version) -> Graph:
        if version.graph:
            return self._known(version.graph, lambda: self._published_graph(version))
        meta = Path(f"{self._store.prefix(version)}.meta")
        if not (self._meta_inputs and self._meta_outputs):
            raise GraphError(
                f"version {version.number} names no graph: give --inputs and --outputs to take it from {meta}"
            )
        content = _content(meta, version)
        return self._known(
            hashlib.sha256(content).hexdigest(),
            lambda: capture_meta(meta, inputs=self._meta_inputs, outputs=self._meta_outputs),
        )

    def _published_graph(self, version: Version) -> Graph:
        path = self._store.graph_file(version.graph)
        graph = Graph.from_bytes(_content(path, version))
        if graph.digest != version.graph:
            raise GraphError(f"{path}: expected the graph {version.graph}, found {graph.digest}")
        return graph

    def _known(self, key: str, build: Callable[[], Graph]) -> Graph:
        graph = self._graphs.pop(key, None) or build()
        self._graphs[key] = graph  # last in the order of use
        while len(self._graphs) > RESIDENT:
            del self._graphs[next(iter(self._graphs))]
        return graph


def _content(path: Path, version: Version) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise GraphError(f"version {version.number} needs the graph file {path}, which is not there") from error


def _check_entries(version: Version, graph: Graph, entries: Mapping[str, Entry]) -> None:
    """What the files claim against what the graph needs, before any data is read."""
    where = f"version {version.number}"
    missing = [spec.name for spec in graph.parameters if spec.name not in entries]
    if missing:
        found = f"{', '.join(sorted(entries)[:8]) or 'nothing'}{' and more' if len(entries) > 8 else ''}"
        raise ParameterError(where, expected=f"{', '.join(missing[:8])} ({len(missing)} missing)", found=found)
    for spec in graph.parameters:
        dtype, shape = dtypes.name(entries[spec.name].dtype), entries[spec.name].shape
        if not spec.accepts(dtype, shape):
            raise ParameterError(where, expected=f"{spec.name} {spec}", found=described(dtype, shape))


def _parameter(version: Version, bundle: Bundle, name: str) -> tf.Tensor:
    array = bundle.array(name)
    if not _finite(array):
        raise ParameterError(f"version {version.number}", expected=f"finite values in {name}", found="NaN or infinity")
    return alias(array)


def _finite(array: np.ndarray) -> bool:
    if array.dtype.kind not in "fcV":  # V: bfloat16 and its like
        return True
    flat = array.reshape(-1)
    return all(bool(np.isfinite(flat[at : at + _CHUNK]).all()) for at in range(0, flat.size, _CHUNK))
