"""Graph: a pure function of parameters and inputs, its signatures, its digest; kept as bytes without weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from paramsync import dtypes
from paramsync.errors import GraphError, InputError, UnknownSignatureError
from paramsync.graphdef.allowed_ops import STOCHASTIC
from paramsync.graphs.calls import Call, check_placeholders
from paramsync.graphs.digest import digest
from paramsync.graphs.embeddings import embeddings
from paramsync.graphs.safety import checks as safety
from paramsync.graphs.safety.weight import GRAPH_FILE, check_weight
from paramsync.graphs.specs import DEFAULT_SIGNATURE, Signature, described, spec_of
from paramsync.graphs.tables import MAX_BYTES as TABLE_BYTES
from paramsync.graphs.tables import Contents, fill
from paramsync.host import files
from paramsync.store.store import sealed
from paramsync.v1 import graph_pb2

_Array = Any
"""A tensor, an array, or what has the dtype and shape of one."""


class Graph:
    """A pure function. Immutable; any number of threads may call it at once, with any parameters, without a lock."""

    def __init__(self, message: graph_pb2.Graph, *, refused: Mapping[str, str] = MappingProxyType({})) -> None:
        """Build the functions that a graph file describes, which is trusted. Raises GraphError where they cannot be.

        Its lookup tables are made and filled here, once, and shared by all calls. `refused` says of signatures that
        the graph was made without, why.
        """
        self.refused = refused
        graph_def = _parsed(tf.compat.v1.GraphDef, message.graph_def, "graph_def")
        self._message = _placeless(message, graph_def)
        self.parameters = tuple(spec_of(one) for one in message.parameters)
        self.signatures: Mapping[str, Signature] = {
            name: Signature(
                inputs={one.name: spec_of(one) for one in signature.inputs},
                outputs={one.name: spec_of(one) for one in signature.outputs},
                method_name=signature.method_name,
            )
            for name, signature in sorted(message.signatures.items())
        }
        self.stochastic = tuple(sorted({node.op for node in _nodes(graph_def)} & STOCHASTIC))
        """Ops that make two calls with the same arguments differ."""
        self.object_graph = message.object_graph
        """With it, TensorFlow reads a checkpoint of the parameters into what was captured; may be empty."""
        self.called: Mapping[str, str] = {one.name: one.variable for one in message.parameters if one.variable}
        """What the framework calls the variable of each parameter, where that is known."""
        check_placeholders(graph_def, message)
        tables = [Contents(one) for one in message.tables]
        try:
            self.digest = _digest(graph_def, message, tables)
        except (ValueError, TypeError, KeyError) as error:
            raise GraphError(f"the graph cannot be built: {error}") from error
        if message.digest and message.digest != self.digest:  # before anything is made of a file that was damaged
            raise GraphError(f"the graph is not the one it says it is: expected {message.digest}, found {self.digest}")
        self._of_any_shape: dict[str, Call] = {}
        try:
            self._handles = handles = fill(tables)
            self._functions = {
                name: Call(graph_def, signature, message, handles) for name, signature in message.signatures.items()
            }
            self.embeddings = embeddings(graph_def, message)
            """Names of parameters of which it only looks up rows."""
        except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
            raise GraphError(f"the graph cannot be built: {error}") from error

    @classmethod
    def from_bytes(cls, content: bytes, *, allowed: Collection[str] = ()) -> Graph:
        """The graph of a file that somebody else may have made.

        Raises UnsafeGraphError where it uses ops that are neither known to be safe nor `allowed` by name, or would cost
        more memory than a graph may, and GraphError where it cannot be read or built.
        """
        check_weight(content, GRAPH_FILE)
        message = _parsed(graph_pb2.Graph, content, "graph file")
        if not message.signatures:
            raise GraphError("the graph file: expected a signature or more, found none")
        taken = sum(len(one.keys) + len(one.values) for one in message.tables)
        if taken > TABLE_BYTES:
            raise GraphError(f"the graph file: expected at most {TABLE_BYTES} bytes of tables, found {taken}")
        graph_def = _parsed(tf.compat.v1.GraphDef, message.graph_def, "graph_def")
        safety.check(graph_def, allowed=allowed)
        safety.check_signatures(message, graph_def)
        return cls(message)

    @classmethod
    def load(cls, path: str | Path, *, allowed: Collection[str] = ()) -> Graph:
        """The graph of a file. Raises as `from_bytes` does, OSError, and CorruptCheckpointError for no regular file."""
        try:
            return cls.from_bytes(files.content(Path(path), limit=files.MAX_MESSAGE), allowed=allowed)
        except GraphError as error:
            raise type(error)(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Keep it as one file, which is there once it is complete."""
        with files.aside(Path(path)) as file:
            file.write(self.to_bytes())

    def to_bytes(self) -> bytes:
        return sealed(self.message().SerializeToString(deterministic=True))

    def message(self) -> graph_pb2.Graph:
        """What a file of it holds."""
        message = graph_pb2.Graph()
        message.CopyFrom(self._message)
        message.digest = self.digest
        message.ClearField("checksum")  # of the file that it is from
        return message

    def __call__(
        self,
        parameters: Sequence[tf.Tensor],
        inputs: Mapping[str, tf.Tensor],
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Collection[str] = (),
        of_any_shape: bool = False,
    ) -> dict[str, tf.Tensor]:
        """The outputs named, or all of them. `parameters` come in the order of `self.parameters`.

        Raises UnknownSignatureError, InputError and ParameterError for names and numbers that do not fit. Dtypes and
        shapes are TensorFlow's to refuse; who does not trust the inputs calls `check_inputs` before, or, for inputs of
        other shapes than the signature's, `fits` and this with `of_any_shape`, whose first call takes longer.
        """
        try:
            call = self._any_shape(signature) if of_any_shape else self._functions[signature]
            results = call(parameters, inputs)
            return {name: results[name] for name in outputs} if outputs else results
        except KeyError:
            self._check_call(signature, inputs, outputs)
            raise

    def _any_shape(self, signature: str) -> Call:
        """One that relies on no shape of an input: kernels would rely on what was inferred from a wrong one."""
        call = self._of_any_shape.get(signature)
        if call is None:
            graph_def = _parsed(tf.compat.v1.GraphDef, self._message.graph_def, "graph_def")
            described = self._message.signatures[signature] if signature in self.signatures else None
            if described is None:
                raise KeyError(signature)
            made = Call(graph_def, described, self._message, self._handles, of_any_shape=True)
            call = self._of_any_shape.setdefault(signature, made)  # of two threads' the first one's
        return call

    def _check_call(self, signature: str, inputs: Collection[str], outputs: Collection[str]) -> None:
        """Raise what is wrong with the names of a call."""
        if signature not in self.signatures:
            raise self.unknown(signature)
        _check_names(self.signatures[signature], inputs, outputs)

    def unknown(self, signature: str) -> UnknownSignatureError:
        """The error for a signature that is not among those of the graph."""
        return UnknownSignatureError(signature, self.signatures, self.refused.get(signature, ""))

    def check_inputs(self, signature: str, inputs: Mapping[str, _Array], outputs: Collection[str] = ()) -> None:
        """Raise UnknownSignatureError or InputError where a call with these arguments could not succeed."""
        if not self.fits(signature, inputs, outputs):
            raise self.misfit(signature, inputs)

    def fits(self, signature: str, inputs: Mapping[str, _Array], outputs: Collection[str] = ()) -> bool:
        """Whether the shapes are those of the signature. Raises as `check_inputs` does for names and dtypes."""
        self._check_call(signature, inputs, outputs)
        fitting = True
        for name, spec in self.signatures[signature].inputs.items():
            dtype, shape = _dtype_name(inputs[name]), tuple(inputs[name].shape)
            if dtype != spec.dtype:
                raise InputError(f"input {name!r}", expected=spec, found=described(dtype, shape))
            fitting &= spec.accepts(dtype, shape)
        return fitting

    def misfit(self, signature: str, inputs: Mapping[str, _Array], why: str = "") -> InputError:
        """What is wrong with the first input of another shape than the signature's."""
        for name, spec in self.signatures[signature].inputs.items():
            dtype, shape = _dtype_name(inputs[name]), tuple(inputs[name].shape)
            if not spec.accepts(dtype, shape):
                found = described(dtype, shape)
                return InputError(f"input {name!r}", expected=spec, found=f"{found}: {why}" if why else found)
        raise AssertionError("all fit")


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


def _nodes(graph_def: Any) -> Iterator[Any]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _placeless(message: graph_pb2.Graph, graph_def: Any) -> graph_pb2.Graph:
    """The message without a word on devices, as is `graph_def` then: whoever calls a graph says where it computes."""
    placed = [node for node in _nodes(graph_def) if node.device or "_class" in node.attr]
    if not placed:
        return message
    for node in placed:
        node.device = ""
        node.attr.pop("_class", None)  # the node beside which it was to be placed
    placeless = graph_pb2.Graph()
    placeless.CopyFrom(message)
    placeless.graph_def = graph_def.SerializeToString(deterministic=True)
    return placeless


def _digest(graph_def: Any, message: graph_pb2.Graph, tables: Sequence[Contents]) -> str:
    named = {one.node: f"parameter {one.name} {spec_of(one)}" for one in message.parameters}
    named |= {one.node: f"table {held.digest()}" for one, held in zip(message.tables, tables, strict=True)}
    results, ends = [], list(named.values())
    for name, signature in sorted(message.signatures.items()):
        for one in signature.inputs:  # signatures may share a placeholder
            node, meaning = one.tensor.removesuffix(":0"), f"{name} input {one.name} {spec_of(one)}"
            named[node] = f"{named.get(node, '')} {meaning}"
            ends.append(meaning)
        results += [(f"{name} {one.name}", one.tensor) for one in signature.outputs]
        ends += [f"{name} output {one.name} {spec_of(one)}" for one in signature.outputs]
    return digest(graph_def, named, results, ends)


def _parsed(kind: Any, content: bytes, what: str) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise GraphError(f"the {what} is not readable: {error}") from error
