"""Merges traced functions into a Draft, and sorts their captures into variables, tables and constants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import control_inputs, data_inputs, node_of
from paramsync.graphs.draft import Draft, Parameter
from paramsync.graphs.lifting.roles import READS, is_seed
from paramsync.graphs.nodes import become_constant
from paramsync.graphs.sources.structures import endpoint_of
from paramsync.graphs.sources.table_contents import live_table
from paramsync.graphs.tables import pack
from paramsync.v1 import graph_pb2

CONSTANTS_LIMIT = 1 << 30
"""The most bytes of captured tensors that become constants: a GraphDef must stay well below 2 GiB."""


@dataclass(frozen=True, slots=True)
class Own:
    """The model's own call and the specs of its arguments, for a comparison with its trace (see `own_calls`)."""

    name: str
    specs: Sequence[tf.TypeSpec]
    call: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Trace:
    """A ConcreteFunction, and the names of its input and output tensors."""

    function: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    own: Own | None = None


def draft_of_traces(
    traces: Mapping[str, Trace], keys: Mapping[str, tf.Variable] | None
) -> tuple[Draft, Mapping[str, tf.Variable]]:
    """Draft a graph of functions that share parameters. Each function becomes a signature.

    Also returns the variable of each parameter, by name. `keys` names the variables; by default each variable has its
    own name. Raises GraphError for a captured tensor that cannot become a parameter, a table or a constant.
    """
    merged = _Merged(keys)
    for position, (name, trace) in enumerate(traces.items()):
        merged.add(name, trace, f"signature_{position}/" if len(traces) > 1 else "")
    parameters = list(merged.parameters.values())
    draft = Draft(merged.graph_def, parameters, merged.signatures, merged.tables, merged.seeds, unused_inputs=True)
    return draft, merged.variables


def only(draft: Draft, outputs: Collection[str]) -> Draft:
    """Return the draft with only these outputs. Raises GraphError for an unknown output, or if a signature has none."""
    signatures = {}
    for name, signature in draft.signatures.items():
        kept = [end for end in signature.outputs if end.name in outputs]
        signatures[name] = graph_pb2.Signature(inputs=signature.inputs, outputs=kept, method_name=signature.method_name)
    known = {end.name for signature in draft.signatures.values() for end in signature.outputs}
    unknown = sorted(set(outputs) - known)
    if unknown or not all(signature.outputs for signature in signatures.values()):
        raise GraphError(
            f"outputs: expected some of {', '.join(sorted(known)) or 'none'}, of each signature at least one,"
            f" found {', '.join(outputs) or 'none'}"
        )
    return replace(draft, signatures=signatures)


class _Merged:
    """One GraphDef of many functions, with one node for each captured tensor."""

    def __init__(self, keys: Mapping[str, tf.Variable] | None) -> None:
        self._by_own_names = keys is None
        self.graph_def = tf.compat.v1.GraphDef()
        self.parameters: dict[str, Parameter] = {}
        self.variables: dict[str, tf.Variable] = {}
        self.signatures: dict[str, graph_pb2.Signature] = {}
        self.tables: list[graph_pb2.Table] = []
        self.seeds: dict[str, tf.TensorSpec] = {}
        keys = {} if keys is None else keys
        self._keys = {id(_handles(variable)[0]): name for name, variable in keys.items()}
        self._whole = {id(handle): variable for variable in keys.values() for handle in _handles(variable)}
        self._nodes: dict[int, str] = {}  # the node of each captured tensor, by the tensor's identity
        self._functions: set[str] = set()
        self._bytes = 0

    def add(self, name: str, trace: Trace, prefix: str) -> None:
        function = trace.function
        try:
            graph_def = function.graph.as_graph_def()
        except ValueError as error:
            raise GraphError(f"{name!r} is too large, make variables of its constants: {error}") from error
        count = len(trace.inputs)
        captured = {
            placeholder.op.name: value
            for placeholder, value in zip(function.inputs[count:], function.captured_inputs, strict=True)
        }
        names = {node.name: prefix + node.name for node in graph_def.node}
        for placeholder, value in captured.items():
            whole = self._whole.get(id(value))
            first = value if whole is None else _handles(whole)[0]
            names[placeholder] = self._nodes.setdefault(id(first), names[placeholder])
        reads = {node.name for node in graph_def.node if node.op in READS}
        added = {node.name for node in self.graph_def.node}
        variables = {id(handle): variable for variable in function.graph.variables for handle in _handles(variable)}
        for node in graph_def.node:
            if names[node.name] in added:
                continue  # an earlier function, or another replica, captured this tensor
            copy = self._copy(node, names, reads)
            added.add(copy.name)
            if node.name in captured:
                value = captured[node.name]
                if id(value) in variables:
                    self._add_variable(copy.name, self._whole.get(id(value), variables[id(value)]))
                elif value.dtype == tf.resource:
                    self.tables.append(pack(copy.name, *live_table(value, node.name, graph_def)))
                else:
                    self._make_constant(copy, value)
        self.graph_def.versions.CopyFrom(graph_def.versions)
        for called in graph_def.library.function:
            if called.signature.name not in self._functions:
                self._functions.add(called.signature.name)
                self.graph_def.library.function.add().CopyFrom(called)
        self.signatures[name] = graph_pb2.Signature(
            inputs=_endpoints(trace.inputs, function.inputs[:count], names),
            outputs=_endpoints(trace.outputs, function.outputs, names),
        )

    def _copy(self, node: Any, names: Mapping[str, str], reads: Collection[str]) -> Any:
        copy = self.graph_def.node.add()
        copy.CopyFrom(node)
        copy.name = names[node.name]
        copy.attr.pop("_class", None)  # remove the colocation, which has the old names
        # TensorFlow makes a function wait for its reads of variables; these control inputs are left out.
        waits = [name[1:] for name in control_inputs(node) if name[1:] not in reads]
        data = [names[node_of(tensor)] + tensor[len(node_of(tensor)) :] for tensor in data_inputs(node)]
        copy.input[:] = [*data, *(f"^{names[name]}" for name in waits)]
        return copy

    def _add_variable(self, node: str, variable: tf.Variable) -> None:
        spec = tf.TensorSpec(variable.shape, variable.dtype)
        if is_seed(variable.name.removesuffix(":0"), variable):
            self.seeds[node] = spec
            return
        name = self._name_of(variable)
        if name in self.parameters:
            raise GraphError(
                f"several variables are called {name!r}: say root=, the object that their checkpoint is made of"
            )
        self.parameters[name] = Parameter(name, node, spec)
        self.variables[name] = variable

    def _name_of(self, variable: tf.Variable) -> str:
        if self._by_own_names:
            return str(variable.name.removesuffix(":0"))
        handle, *replicas = _handles(variable)
        if id(handle) not in self._keys:
            raise GraphError(
                f"{variable.name!r} is a variable that is not part of the model; only its own are published: make it"
                " an attribute of the model, or say root=, an object that has both"
            )
        if replicas and variable.synchronization == tf.VariableSynchronization.ON_READ:
            _check_that_it_has_one_value(variable)
        return self._keys[id(handle)]

    def _make_constant(self, node: Any, value: Any) -> None:
        try:
            array = value.numpy()
        except (AttributeError, NotImplementedError, tf.errors.OpError) as error:
            raise GraphError(
                f"{node.name!r}, a {value.dtype.name} from outside the function, cannot be kept in a graph"
            ) from error
        self._bytes += array.nbytes if isinstance(array, np.ndarray) else 0
        if self._bytes > CONSTANTS_LIMIT:
            raise GraphError(
                f"the tensors that the functions take from outside have {self._bytes} bytes or more and at most"
                f" {CONSTANTS_LIMIT} can be constants of a graph: make {node.name!r} and the like variables"
            )
        become_constant(node, array)


def _handles(variable: Any) -> list[Any]:
    """Return the handle of a variable in a list; under a distribution strategy, the handle of each replica."""
    many = variable.values if isinstance(variable, tf.distribute.DistributedValues) else [variable]
    return [replica.handle for replica in many]


def _check_that_it_has_one_value(variable: Any) -> None:
    """Raise GraphError unless a single value can stand for the values of all replicas."""
    if variable.aggregation not in (tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA):
        raise GraphError(
            f"{variable.name!r} is ON_READ, with a value on each replica, and read as their"
            f" {variable.aggregation.name}, which a graph with one value cannot do: make it ON_WRITE, or with the"
            " aggregation MEAN or ONLY_FIRST_REPLICA, or publish a function that does not read it"
        )


def _endpoints(names: Sequence[str], tensors: Iterable[tf.Tensor], own: Mapping[str, str]) -> list[graph_pb2.Endpoint]:
    return [
        endpoint_of(name, f"{own[tensor.op.name]}:{tensor.value_index}", tensor)
        for name, tensor in zip(names, tensors, strict=True)
    ]
