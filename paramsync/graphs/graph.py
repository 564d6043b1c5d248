"""Graph: a pure function of parameters and inputs, with its signatures and digest, in a file without weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from paramsync import dtypes
from paramsync.errors import GraphError, InputError, UnknownSignatureError
from paramsync.graphdef.allowed_ops import STOCHASTIC
from paramsync.graphdef.reading import data_inputs, every_node, node_of, reach
from paramsync.graphs import safety
from paramsync.graphs.calls import Call, check_placeholders
from paramsync.graphs.digest import digest
from paramsync.graphs.nodes import leading_to
from paramsync.graphs.safety import GRAPH_FILE, check_weight
from paramsync.graphs.specs import DEFAULT_SIGNATURE, Signature, described, spec_of
from paramsync.graphs.tables import MAX_BYTES as TABLE_BYTES
from paramsync.graphs.tables import Contents, fill
from paramsync.host import files
from paramsync.store.store import add_checksum
from paramsync.v1 import graph_pb2

_Array = Any
"""A tensor, an array, or another value with a dtype and a shape."""


class Graph:
    """A pure function. Immutable; any number of threads may call it at once, with any parameters, without a lock."""

    def __init__(self, message: graph_pb2.Graph, *, refused: Mapping[str, str] = MappingProxyType({})) -> None:
        """Build the functions that a graph file describes. The message must be trusted, or come from `check_file`.

        The lookup tables are filled once, here, and shared by all calls. `refused` has the reason for each signature of
        the source that is missing from the graph. Raises GraphError if the functions cannot be built.
        """
        self.refused = refused
        graph_def = _parsed(tf.compat.v1.GraphDef, message.graph_def, "graph_def")
        self._message = _placeless(message, graph_def)
        self.parameters = tuple(map(spec_of, message.parameters))
        self.signatures: Mapping[str, Signature] = {
            name: Signature(
                inputs={end.name: spec_of(end) for end in signature.inputs},
                outputs={end.name: spec_of(end) for end in signature.outputs},
                method_name=signature.method_name,
            )
            for name, signature in sorted(message.signatures.items())
        }
        self.stochastic = tuple(sorted({node.op for node in every_node(graph_def)} & STOCHASTIC))
        """The random ops of the graph. If there are any, two calls with the same arguments give different results."""
        self.object_graph = message.object_graph
        """The object graph that TensorFlow needs to restore a checkpoint into the source; may be empty."""
        self.called: Mapping[str, str] = {
            parameter.name: parameter.variable for parameter in message.parameters if parameter.variable
        }
        """The framework's name of a parameter's variable, by parameter, if the name is known."""
        check_placeholders(graph_def, message)
        tables = list(map(Contents, message.tables))
        try:
            self.digest = _digest(graph_def, message, tables)
        except (ValueError, TypeError, KeyError) as error:
            raise GraphError(f"the graph cannot be built: {error}") from error
        if message.digest and message.digest != self.digest:  # the file is damaged
            raise GraphError(f"the graph is not the one it says it is: expected {message.digest}, found {self.digest}")
        try:
            handles = fill(tables)
            self._functions = {
                name: Call(graph_def, signature, message, handles) for name, signature in message.signatures.items()
            }
            self.embeddings = _embeddings(graph_def, message)
            """The names of parameters from which calls only look up rows."""
        except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
            raise GraphError(f"the graph cannot be built: {error}") from error

    @classmethod
    def from_bytes(cls, content: bytes, *, allowed: Collection[str] = ()) -> Graph:
        """Check and build the graph of an untrusted file. Raises as `check_file` and the constructor do."""
        return cls(cls.check_file(content, allowed=allowed))

    @staticmethod
    def check_file(content: bytes, *, allowed: Collection[str] = ()) -> graph_pb2.Graph:
        """Check a graph file, and return its message. The publisher and its followers make the same checks.

        Raises UnsafeGraphError for ops that are neither known to be safe nor `allowed`, or a graph that would take too
        much memory, and GraphError for a file that is not readable.
        """
        check_weight(content, GRAPH_FILE)
        message: graph_pb2.Graph = _parsed(graph_pb2.Graph, content, "graph file")
        if not message.signatures:
            raise GraphError("the graph file: expected a signature or more, found none")
        size = sum(len(table.keys) + len(table.values) for table in message.tables)
        if size > TABLE_BYTES:
            raise GraphError(f"the graph file: expected at most {TABLE_BYTES} bytes of tables, found {size}")
        graph_def = _parsed(tf.compat.v1.GraphDef, message.graph_def, "graph_def")
        safety.check(graph_def, allowed=allowed)
        safety.check_signatures(message, graph_def)
        return message

    @classmethod
    def load(cls, path: str | Path, *, allowed: Collection[str] = ()) -> Graph:
        """Read the graph in a file.

        Raises as `from_bytes` does, OSError, and CorruptCheckpointError if the file is not regular or too large.
        """
        try:
            return cls.from_bytes(files.content(Path(path), limit=files.MAX_MESSAGE), allowed=allowed)
        except GraphError as error:
            raise type(error)(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the graph to a file, which appears once it is complete."""
        with files.aside(Path(path)) as file:
            file.write(self.to_bytes())

    def to_bytes(self) -> bytes:
        return add_checksum(self.message().SerializeToString(deterministic=True))

    def message(self) -> graph_pb2.Graph:
        """Return the content of the graph's file as a message, with the digest and without a checksum."""
        message = graph_pb2.Graph()
        message.CopyFrom(self._message)
        message.digest = self.digest
        message.ClearField("checksum")  # this is the checksum of the file from which the graph was read
        return message

    def __call__(
        self,
        parameters: Sequence[tf.Tensor],
        inputs: Mapping[str, tf.Tensor],
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Collection[str] = (),
    ) -> dict[str, tf.Tensor]:
        """Compute the named outputs, or all. `parameters` must have the order of `self.parameters`.

        Raises UnknownSignatureError, InputError and ParameterError for unknown names and a wrong number of parameters.
        Dtypes and shapes are not checked: call `check_inputs` first for untrusted inputs.
        """
        try:
            results = self._functions[signature](parameters, inputs)
            return {name: results[name] for name in outputs} if outputs else results
        except KeyError:
            self._check_call(signature, inputs, outputs)
            raise

    def _check_call(self, signature: str, inputs: Collection[str], outputs: Collection[str]) -> None:
        """Raise UnknownSignatureError or InputError for wrong names in a call."""
        if signature not in self.signatures:
            raise self.unknown(signature)
        _check_names(self.signatures[signature], inputs, outputs)

    def unknown(self, signature: str) -> UnknownSignatureError:
        """Return the error for a signature that the graph does not have."""
        return UnknownSignatureError(signature, self.signatures, self.refused.get(signature, ""))

    def check_inputs(
        self, signature: str, inputs: Mapping[str, _Array], outputs: Collection[str] = (), *, any_shape: bool = False
    ) -> bool:
        """Raise UnknownSignatureError or InputError for arguments that do not fit the signature.

        With `any_shape`, inputs of other shapes do not raise. Returns True if all shapes fit.
        """
        self._check_call(signature, inputs, outputs)
        shapes_fit = True
        for name, spec in self.signatures[signature].inputs.items():
            dtype, shape = _dtype_name(inputs[name]), tuple(inputs[name].shape)
            if spec.accepts(dtype, shape):
                continue
            if dtype != spec.dtype or not any_shape:
                convertible = dtype != spec.dtype and "string" not in (dtype, spec.dtype)
                remedy = f": pass astype({spec.dtype!r})" if convertible else ""
                raise InputError(f"input {name!r}", expected=spec, found=described(dtype, shape) + remedy)
            shapes_fit = False
        return shapes_fit


def _dtype_name(value: _Array) -> str:
    if isinstance(value, tf.Tensor):
        return str(value.dtype.name)
    number = dtypes.from_numpy(value.dtype)
    return str(value.dtype) if number is None else dtypes.name(number)


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


def _check_names(wanted: Signature, inputs: Collection[str], outputs: Collection[str]) -> None:
    if set(inputs) != wanted.inputs.keys():
        raise InputError("inputs", expected=_listed(wanted.inputs), found=_listed(inputs))
    unknown = [name for name in outputs if name not in wanted.outputs]
    if unknown:
        raise InputError("output filter", expected=f"some of {_listed(wanted.outputs)}", found=_listed(unknown))
    if len(set(outputs)) != len(outputs):
        twice = sorted(name for name, count in Counter(outputs).items() if count > 1)
        raise InputError("output filter", expected="each output once", found=f"{_listed(twice)} more than once")


def _placeless(message: graph_pb2.Graph, graph_def: Any) -> graph_pb2.Graph:
    """Remove devices from the message and from `graph_def`: the caller of a graph chooses the device."""
    placed = [node for node in every_node(graph_def) if node.device or "_class" in node.attr]
    if not placed:
        return message
    for node in placed:
        node.device = ""
        node.attr.pop("_class", None)  # remove the node's colocation
    placeless = graph_pb2.Graph()
    placeless.CopyFrom(message)
    placeless.graph_def = graph_def.SerializeToString(deterministic=True)
    return placeless


def _digest(graph_def: Any, message: graph_pb2.Graph, tables: Sequence[Contents]) -> str:
    named = {value.node: f"parameter {value.name} {spec_of(value)}" for value in message.parameters}
    named |= {table.node: f"table {held.digest()}" for table, held in zip(message.tables, tables, strict=True)}
    results, ends = [], list(named.values())
    for name, signature in sorted(message.signatures.items()):
        for end in signature.inputs:  # signatures may share a placeholder
            node, meaning = end.tensor.removesuffix(":0"), f"{name} input {end.name} {spec_of(end)}"
            named[node] = f"{named.get(node, '')} {meaning}"
            ends.append(meaning)
        results += [(f"{name} {end.name}", end.tensor) for end in signature.outputs]
        ends += [f"{name} output {end.name} {spec_of(end)}" for end in signature.outputs]
    return digest(graph_def, named, results, ends)


_PASSED_ON = frozenset(("Identity", "PreventGradient", "Snapshot", "StopGradient"))
_UNREAD = frozenset(("Rank", "Shape", "ShapeN", "Size"))  # ops that read the shape of their input, not its values
_LOOKED_UP = frozenset(("Gather", "GatherNd", "SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum"))


def _embeddings(graph_def: Any, message: graph_pb2.Graph) -> frozenset[str]:
    """Return the names of parameters from which calls only look up rows: a call reads few of their bytes.

    A parameter that is passed to a function, or whose use is unclear, counts as read whole. Visits each node that leads
    to an output once.
    """
    nodes = {node.name: node for node in graph_def.node}
    returned = [end.tensor for signature in message.signatures.values() for end in signature.outputs]
    read = set(map(node_of, returned))  # nodes that are read whole
    for node in leading_to(nodes, returned):
        taken = list(map(node_of, data_inputs(node)))
        if node.op in _PASSED_ON:
            read.update(taken[1:])
        elif node.op not in _UNREAD:
            read.update(taken[1:] if _looks_up_rows(node, taken, nodes) else taken)

    def behind(name: str) -> Iterable[str]:
        passes = name in nodes and nodes[name].op in _PASSED_ON
        return map(node_of, nodes[name].input) if passes else ()

    unread = {parameter.node: parameter.name for parameter in message.parameters}
    for name in reach(read, behind):
        unread.pop(name, None)
    return frozenset(unread.values())


def _looks_up_rows(node: Any, inputs: Sequence[str], nodes: Mapping[str, Any]) -> bool:
    """Return whether the node takes whole rows of its first argument. A lookup along another axis reads all rows."""
    if node.op != "GatherV2":
        return node.op in _LOOKED_UP
    axis = nodes.get(inputs[2])
    if axis is None or axis.op != "Const" or node.attr["batch_dims"].i:
        return False
    return int(tf.make_ndarray(axis.attr["value"].tensor)) == 0


def _parsed(kind: Any, content: bytes, what: str) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise GraphError(f"the {what} is not readable: {error}") from error
