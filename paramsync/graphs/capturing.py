"""capture(): makes a Graph of a model, a function, a folder or a file, and finds the variables of its parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from paramsync.errors import CorruptCheckpointError, GraphError, UnreadableError
from paramsync.graphs.draft import finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources import functions, keras_models, own_calls
from paramsync.graphs.sources.meta_graphs import draft_of_meta, read_meta
from paramsync.graphs.sources.objects import KeptValues, object_graph, parts, variable_keys, variable_names
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

    `variables` is empty for a source without live variables, such as a file. `origin` is the captured object, if it can
    change.
    """

    graph: Graph
    variables: tuple[tf.Variable, ...] = ()
    origin: Origin | None = field(default=None, compare=False, repr=False)

    @property
    def object_graph(self) -> bytes:
        """The object graph that TensorFlow needs to restore a checkpoint into the source.

        Empty if the checkpoints of the source are restored by the names of variables.
        """
        return self.graph.object_graph


@dataclass(frozen=True, slots=True)
class Origin:
    """The captured object. It may get other variables later, for example by new layers, adapters or quantization.

    `parts` are its variables and layers at the time of the capture, `kept` the other values that its layers keep.
    `again(other_parts)` captures the object again from its current code. A source without code, such as a
    ConcreteFunction, keeps its trace; with `other_parts` it raises StructureError.
    """

    root: Any
    parts: tuple[Any, ...]
    kept: KeptValues
    again: Callable[[bool], Capture]


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
    """Capture the function by which `source` predicts, from its inputs to its outputs.

    Args:
        source: One of
            - a Keras model; a tf.Module whose `__call__` is a tf.function; a tf.function or ConcreteFunction;
            - the result of tf.saved_model.load: captures its signatures;
            - the path of a SavedModel: captures all signatures that can be served (`graph.refused` has the
              other signatures);
            - the path of a `.meta` file, or a MetaGraphDef;
            - `(inputs, outputs)`: tensors of a v1 graph.
        inputs: Specs of the inputs. A model that was never built needs them, nested like its arguments; a function
            without an input_signature needs them in order or by name. For a `.meta` file or MetaGraphDef, names of
            tensors.
        outputs: The names of the outputs to capture; by default all. A `.meta` file or MetaGraphDef needs them.
        signatures: Functions, or models that share the source's variables, by name. For a SavedModel, the names of the
            signatures to capture.
        root: The object whose checkpoints contain the parameters, which determines their keys. By default the model or
            module; for a v1 graph, a Saver. Without a root, parameters of a function have the names of its variables.
        allowed: Ops to accept in a file although they are not on the list of safe ops.
        compare: Call a Keras model once on made-up inputs, and raise GraphError if its graph gives other results.

    Raises GraphError, which says what is missing or cannot be served.
    """
    if isinstance(outputs, str) or isinstance(signatures, str):
        raise GraphError(f"expected names in a list, found {outputs or signatures!r}")
    if isinstance(source, str | os.PathLike):
        return Capture(_graph_of_path(Path(source), inputs, outputs, signatures, allowed))
    if isinstance(source, tf.compat.v1.MetaGraphDef):
        return Capture(finish(draft_of_meta(source, *_ends(inputs, outputs), allowed=allowed)))
    if isinstance(source, tuple) and len(source) == 2:
        return Capture(finish(draft_of_tensors(*source, saver=root)))
    if root is None and not functions.is_function(source):
        root = source
    return _capture_live(partial(_traces, source, inputs, signatures), outputs, root, compare, functions.trace)


def _capture_live(
    traced: Callable[[_Tracing], dict[str, Trace]], outputs: Any, root: Any, compare: bool, tracing: _Tracing
) -> Capture:
    """Capture a live source; `tracing` traces its functions."""

    def again(other_parts: bool) -> Capture:
        anew = partial(functions.trace_anew, from_code=other_parts)
        return _capture_live(traced, outputs, root, compare, anew)

    traces = traced(tracing)
    draft, variables = draft_of_traces(traces, None if root is None else variable_keys(root))
    origin = None
    if root is not None:
        draft = replace(draft, called=variable_names(root), object_graph=partial(object_graph, root))
        origin = Origin(root, parts(root), KeptValues(root), again)
    graph = finish(draft if outputs is None else only(draft, outputs))
    live = tuple(variables[parameter.name] for parameter in graph.parameters)
    for name, trace in traces.items() if compare else ():
        own_calls.compare(graph, name, trace, [parameter.read_value() for parameter in live])
    return Capture(graph, live, origin)


def _graph_of_path(path: Path, inputs: Any, outputs: Any, signatures: Any, allowed: Collection[str]) -> Graph:
    if path.suffix == ".meta":
        return finish(draft_of_meta(read_meta(path), *_ends(inputs, outputs), where=str(path), allowed=allowed))
    if inputs is not None:
        raise GraphError(f"{path} says itself what its inputs are: leave inputs= out")
    try:
        saved = SavedModel(path, allowed=allowed)
    except (CorruptCheckpointError, UnreadableError) as error:
        raise GraphError(str(error)) from error
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror}") from error
    if signatures is None and outputs is None:
        return saved.graph()
    draft = saved.draft(signatures)
    return finish(draft if outputs is None else only(draft, outputs))


def _ends(inputs: Any, outputs: Any) -> tuple[Any, Any]:
    if not inputs or not outputs or isinstance(inputs, str) or isinstance(outputs, str):
        raise GraphError('a meta graph does not say what goes in and what comes out: inputs=["x:0"], outputs=["y:0"]')
    return inputs, outputs


def _traces(source: Any, inputs: Any, signatures: Any, tracing: _Tracing) -> dict[str, Trace]:
    loaded = _loaded_signatures(source)
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


def _loaded_signatures(source: Any) -> Mapping[str, Any] | None:
    """Return the signatures of a result of tf.saved_model.load; None for any other source."""
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
