"""open_source(): brings versions of any origin into this process's memory."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from weakref import WeakSet

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import GraphError, SettingsError, UnfinishedError, UnfinishedMetaError, UnsafeGraphError
from paramsync.graphs.graph import Graph
from paramsync.graphs.parameters import located, shared
from paramsync.graphs.sources.meta_graphs import capture_meta
from paramsync.graphs.sources.saved_models import SavedModel, variables
from paramsync.host import files
from paramsync.inference.resident import Resident, warm
from paramsync.sources.checkpoints import Checkpoints, needs, verify
from paramsync.sources.saved_models import AS_TEXT, COMMIT
from paramsync.sources.source import Progress, ProgressCallback, Source, Verification, graph_options, identify_graph
from paramsync.store.signing import TrustedKeys
from paramsync.store.store import Store
from paramsync.version import Version

_log = logging.getLogger("paramsync.sources")


def open_source(
    path: Path | str,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    graph: Path | str | None = None,
    verification: Verification = "auto",
    allowed: Collection[str] = (),
    warmed: bool = True,
    trust: Sequence[Path | str] = (),
) -> Source[Resident]:
    """Make a source for a directory, which need not exist yet. Each look detects the kind of source:

    - Checkpoints, if there is a file `checkpoint`. For a Saver's checkpoints, `inputs` and `outputs` name tensors
      ("x:0") of the graphs in its `.meta` files; otherwise `graph` is a graph file, or the directory of a SavedModel.
    - SavedModels in directories whose names are numbers, as TensorFlow Serving follows them.

    `allowed` names ops that a graph may use although they are not known to be safe. If versions are `warmed`, each new
    graph is called once, so that its first request is answered as fast as any other. If `trust` names files of
    public keys, only versions that one of these keys signed are restored, as copies. Raises SettingsError.
    """
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise SettingsError(
                "expected eager execution, found a graph: within tf.Graph().as_default(), do this outside; after"
                " tf.compat.v1.disable_eager_execution(), serve from another process"
            )
    if bool(inputs) != bool(outputs):
        raise SettingsError("expected inputs and outputs together, found one of them")
    if inputs and graph is not None:
        raise SettingsError("expected inputs and outputs, or a graph, found both")
    if trust and (inputs or graph is not None):
        raise SettingsError("expected trust, or inputs and outputs or a graph for what others wrote, found both")
    keys = TrustedKeys([Path(one) for one in trust]) if trust else None
    file = None if graph is None else Path(graph)
    restores = _Restores(Store(Path(path)), inputs, outputs, file, frozenset(allowed), warmed, verification, keys)
    return Source(Path(path), restores, graph=file, options=graph_options(file, inputs), signed=keys is not None)


class _Restores(Checkpoints[Graph, Resident]):
    """Restores versions in this process.

    A checkpoint's graph is the graph in its record, else the given graph, else the graph in its `.meta` file. A graph
    from another writer is code, so it may use only ops that are known to be safe or are `allowed`.
    """

    def __init__(
        self,
        store: Store,
        inputs: Sequence[str],
        outputs: Sequence[str],
        graph: Path | None,
        allowed: frozenset[str],
        warmed: bool,
        verification: Verification,
        trust: TrustedKeys | None,
    ) -> None:
        super().__init__(store, locate=located, verification=verification, trust=trust)
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._given = graph
        self._allowed = allowed
        self._warmed = warmed
        self._called: WeakSet[Graph] = WeakSet()

    def build_graph(self, content: bytes) -> tuple[Graph, str]:
        graph = Graph.from_bytes(content, allowed=self._allowed)
        return graph, graph.digest

    def make_resident(self, version: Version, graph: Graph, bundle: Bundle, keys: Sequence[str]) -> Resident:
        return Resident(version, graph, shared(bundle, keys))

    def copy_unrecorded(self, version: Version, tell: ProgressCallback) -> Resident:
        return self.restore(version, self._graph(version), tell)

    def copy_saved_model(self, version: Version, directory: Path, tell: ProgressCallback) -> Resident:
        """Copy the parameters, and check them in full."""
        tell(Progress("mapping"))
        graph = self._graph_of(directory)
        parameters: tuple[tf.Tensor, ...] = ()
        if graph.parameters:
            bundle = variables(directory)
            keys = located(graph, bundle, where=f"version {version.number}")
            verify(bundle, keys, tell)
            parameters = shared(bundle, keys)
        return Resident(version, graph, parameters)

    def warm(self, resident: Resident, tell: ProgressCallback) -> Resident:
        if self._warmed and resident.graph not in self._called:
            tell(Progress(phase="warming"))
            warm(resident)
            self._called.add(resident.graph)
        return resident

    def _graph(self, version: Version) -> Graph:
        """Return the graph for a checkpoint that names no graph."""
        if self._given is not None:
            path = self._given
            if not path.exists():
                raise GraphError(needs(version, path))
            return self.graphs.find_or_build((path, identify_graph(path)), lambda: self._capture(path))
        meta = Path(f"{self.store.prefix(version)}.meta")
        if not (self._inputs and self._outputs):
            raise GraphError(
                f"version {version.number} names no graph: give --inputs and --outputs to take it from {meta},"
                " or a graph: the directory of a SavedModel, or a graph file"
            )
        try:
            content = files.content(meta, limit=files.MAX_MESSAGE)
        except FileNotFoundError as error:
            remedy = "have Saver.save write it (write_meta_graph=True), or give a graph"
            raise UnfinishedMetaError(f"{needs(version, meta)}: {remedy}") from error
        return self.graphs.find_or_build(
            hashlib.sha256(content).digest(),
            lambda: capture_meta(content, path=meta, inputs=self._inputs, outputs=self._outputs, allowed=self._allowed),
        )

    def _graph_of(self, directory: Path) -> Graph:
        """Return the graph of a SavedModel, from the cache if `saved_model.pb` is the same as before.

        A graph with tables is captured each time, because the contents of its tables are in other files.
        """
        if not (directory / COMMIT).exists() and (directory / AS_TEXT).exists():
            raise GraphError(f"{directory}: expected {COMMIT}, found {AS_TEXT}: save it without as_text")
        content = files.content(directory / COMMIT, limit=files.MAX_MESSAGE)
        key = hashlib.sha256(content).digest()
        if (known := self.graphs.find(key)) is not None:
            return known
        try:
            graph = self._capture(directory)
        except GraphError as error:
            if not isinstance(error, UnsafeGraphError) and _is_cut(content):
                raise UnfinishedError(str(error)) from error
            raise
        if files.content(directory / COMMIT, limit=files.MAX_MESSAGE) != content:
            raise UnfinishedError(f"{directory}: expected {COMMIT} at rest, found one that changed while it was read")
        same = (known for known in self.graphs.all() if (known.digest, known.refused) == (graph.digest, graph.refused))
        return self.graphs.keep(graph.digest if graph.message().tables else key, next(same, graph))

    def _capture(self, path: Path) -> Graph:
        """Return the graph of a SavedModel or a graph file. Logs the signatures that cannot be served."""
        if not path.is_dir():
            return self.read_graph(path)
        graph = SavedModel(path, allowed=self._allowed).graph()
        for name, why in graph.refused.items():
            _log.warning("%s: signature %s is not served: %s", path, files.shown(name), files.line(why))
        return graph


def _is_cut(content: bytes) -> bool:
    """Return whether the file is too short for a SavedModel, perhaps because it is being written."""
    try:
        return not saved_model_pb2.SavedModel.FromString(content).meta_graphs
    except DecodeError:
        return True
