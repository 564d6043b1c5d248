"""open_source(): versions come into this process's memory, whatever wrote them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import tensorflow as tf

from paramsync.errors import SettingsError
from paramsync.inference.resident import Resident
from paramsync.sources.checkpoints import CheckpointSource
from paramsync.sources.graphs import CheckpointGraphs, SavedModelGraphs
from paramsync.sources.kinds import DetectedSource
from paramsync.sources.saved_models import SavedModelsSource
from paramsync.sources.source import Source, Verification
from paramsync.store.store import Store


def open_source(
    path: Path | str,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    graph: Path | str | None = None,
    verification: Verification = "auto",
    allowed: Collection[str] = (),
) -> Source[Resident]:
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
    graphs = CheckpointGraphs(Store(Path(path)), inputs=inputs, outputs=outputs, graph=given, allowed=allowed)
    checkpoints = CheckpointSource(Path(path), graphs, graph=given, verification=verification)
    told = "graph" if graph is not None else "inputs and outputs" if inputs else ""
    return DetectedSource(
        Path(path), checkpoints, SavedModelsSource(Path(path), SavedModelGraphs(allowed).restored), told
    )
