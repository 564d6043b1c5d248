"""capture(): makes a Graph of a model, a function, a folder or a file, and says where its parameters live."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.draft import finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources import functions, keras_models, own_calls
from paramsync.graphs.sources.kept_values import KeptValues
from paramsync.graphs.sources.meta_graphs import draft_of_meta, read_meta
from paramsync.graphs.sources.objects import object_graph, parts, variable_keys, variable_names
from paramsync.graphs.sources.saved_models import SavedModel
from paramsync.graphs.sources.traces import Trace, draft_of_traces, only
from paramsync.graphs.sources.v1_graphs import draft_of_tensors
from paramsync.graphs.specs import DEFAULT_SIGNATURE

_ACCEPTED = (
    "a Keras model, a tf.Module, a tf.function or ConcreteFunction, what tf.saved_model.load gives, the path of a"
    " SavedModel directory or of a .meta file, a MetaGraphDef, or (inputs, outputs): tensors of a v1 graph"
)


_Tracing = Callable[..., Trace]


@dataclass(frozen=True, slots=True)
class Capture:
    """A graph and the live variables of its parameters, in the order of `graph.parameters`.

    A source that has no live variables, such as a file, leaves `variables` empty; one without an object whose
    checkpoint the parameters are in leaves `object_graph` empty: its checkpoints go by name. What can change has an
    `origin`.
    """

    graph: Graph
    variables: tuple[tf.Variable, ...]
    object_graph: bytes
    origin: Origin | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Origin:
    """The object whose variables were captured, which may get others: layers, adapters, a quantized kernel.

    `parts` are its variables and layers when it was captured, `kept` is what they kept beside these. `again` captures
    it as it is now, from its code; where all there is of that is a trace, and it has other parts, it raises
    StructureError.
    """

    root: Any
    parts: tuple[Any, ...]
    kept: KeptValues
    again: Callable[[bool], Capture]

    def now(self) -> tuple[Any, ...]:
        """Its variables and layers now."""
        return parts(self.root)


def capture(
    source: Any,
    *,
    inputs: Any = None,
    outputs: Any = None,
    signatures: Mapping[str, Any] | Collection[str] | None = None,
    root: Any = None,
    allowed: Collection[str] = (),
    compare: bool = True,
) -> Capture:
    """What `source` computes when it predicts, from its inputs to its outputs.

    - A Keras model: `inputs` are specs of what it takes, nested as it takes them, where it was not built.
    - A tf.Module: its `__call__`, a tf.function. A tf.function: `inputs` are specs of its arguments, in order or by
      name, where it has no input_signature. What tf.saved_model.load gives: its signatures.
    - Any of these with `signatures`: functions, or models that share its variables, each by its own name.
    - The path of a SavedModel: its signatures that can be served (`graph.refused` has the others), or those named in
      `signatures`.
    - The path of a `.meta` file, or a MetaGraphDef: `inputs` and `outputs` are names of tensors.
    - `(inputs, outputs)`: tensors of a v1 graph.

    `outputs` leaves only the outputs of these names. Parameters go by their keys in a checkpoint of `root`, which is
    the model or module where it is not said, or a Saver of the v1 graph; those of a function without a root by their
    own names. `allowed` names ops that may be in a file although they are not known to be safe. A Keras model is called
    once, on small inputs that are made up, and its graph must give the same; without `compare` it is taken as it is.
    Raises GraphError, which says what is missing or cannot be served.
    """
    if isinstance(outputs, str) or isinstance(signatures, str):
        raise GraphError(f"expected names in a list, found {outputs or signatures!r}")
    if isinstance(source, str | os.PathLike):
        return Capture(_graph_of_path(Path(source), inputs, outputs, signatures, allowed), (), b"")
    if isinstance(source, tf.compat.v1.MetaGraphDef):
        return Capture(finish(draft_of_meta(source, *_ends(inputs, outputs), allowed=allowed)), (), b"")
    if isinstance(source, tuple) and len(source) == 2:
        return Capture(finish(draft_of_tensors(*source, saver=root)), (), b"")
    if root is None and not functions.is_function(source):
        root = source
    return _captured(partial(_traces, source, inputs, signatures), outputs, root, compare, functions.trace)


def _captured(
    traced: Callable[[_Tracing], dict[str, Trace]], outputs: Any, root: Any, compare: bool, tracing: _Tracing
) -> Capture:
    """What is live; `tracing` says how functions are traced."""
    traces = traced(tracing)
    draft, variables = draft_of_traces(traces, None if root is None else variable_keys(root))
    origin = None
    if root is not None:
        draft = replace(draft, called=variable_names(root), object_graph=partial(object_graph, root))
        again = partial(_captured_again, traced, outputs, root, compare)
        origin = Origin(root, parts(root), KeptValues(root), again)
    graph = finish(draft if outputs is None else only(draft, outputs))
    live = tuple(variables[parameter.name] for parameter in graph.parameters)
    for name, trace in traces.items() if compare else ():
        own_calls.compare(graph, name, trace, [parameter.read_value() for parameter in live])
    return Capture(graph, live, graph.object_graph, origin)


def _captured_again(
    traced: Callable[[_Tracing], dict[str, Trace]], outputs: Any, root: Any, compare: bool, other_parts: bool
) -> Capture:
    tracing = partial(functions.trace_anew, from_code=other_parts)
    return _captured(traced, outputs, root, compare, tracing)


def _graph_of_path(path: Path, inputs: Any, outputs: Any, signatures: Any, allowed: Collection[str]) -> Graph:
    if path.suffix == ".meta":
        return finish(draft_of_meta(read_meta(path), *_ends(inputs, outputs), where=str(path), allowed=allowed))
    if inputs is not None:
        raise GraphError(f"{path} says itself what its inputs are: leave inputs= out")
    saved = SavedModel(path, allowed=allowed)
    if signatures is None and outputs is None:
        return saved.graph()
    draft = saved.draft(signatures)
    return finish(draft if outputs is None else only(draft, outputs))


def _ends(inputs: Any, outputs: Any) -> tuple[Any, Any]:
    if not inputs or not outputs or isinstance(inputs, str) or isinstance(outputs, str):
        raise GraphError('a meta graph does not say what goes in and what comes out: inputs=["x:0"], outputs=["y:0"]')
    return inputs, outputs


def _traces(source: Any, inputs: Any, signatures: Any, tracing: _Tracing) -> dict[str, Trace]:
    loaded = _loaded(source)
    if not isinstance(source, keras.layers.Layer | tf.Module) and not functions.is_function(source) and not loaded:
        raise GraphError(f"{type(source).__name__} cannot be captured; expected {_ACCEPTED}")
    if signatures is None and inputs is None:
        signatures = loaded
    if signatures is None:
        return {DEFAULT_SIGNATURE: _trace(source, inputs, tracing)}
    if inputs is not None:
        raise GraphError("say inputs= or signatures=, not both: each function of signatures= has its own inputs")
    if not isinstance(signatures, Mapping) or not signatures:
        raise GraphError("signatures: expected functions by name, such as {'embed': model.embed}")
    return {name: _trace(function, None, tracing) for name, function in signatures.items()}


def _loaded(source: Any) -> Mapping[str, Any] | None:
    """The signatures of what tf.saved_model.load gives."""
    signatures = getattr(source, "signatures", None)
    is_loaded = isinstance(signatures, Mapping) and signatures and all(map(functions.is_function, signatures.values()))
    return signatures if is_loaded else None


def _trace(source: Any, inputs: Any, tracing: _Tracing) -> Trace:
    if isinstance(source, keras.layers.Layer):
        return keras_models.trace(source, inputs)
    if functions.is_function(source):
        return tracing(source, inputs)
    if not callable(source):
        raise GraphError(
            f"{type(source).__name__} cannot be captured: its __call__ must be a tf.function with an input_signature,"
            " or signatures= must name its functions"
        )
    return tracing(source.__call__, inputs, what=f"{type(source).__name__}.__call__")
