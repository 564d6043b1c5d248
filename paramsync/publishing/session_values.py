"""SessionValues: publishes the variables of a v1 graph. A snapshot of resource variables in a session needs no copy."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync.dtypes import Array
from paramsync.errors import GraphError, PublishError, SettingsError
from paramsync.graphdef.reading import full
from paramsync.graphs.draft import Parameter, PartRange, finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.v1_graphs import draft_of_tensors, saved_by
from paramsync.publishing.write_behind import PIECE, divide
from paramsync.tensorbundle.index import assemble

Averages = Callable[[Any], Any]

v1 = tf.compat.v1


@dataclass(frozen=True, slots=True)
class _Group:
    """Operations on the values of some variables: they pin the values in the session, fetch them, and release them.

    A pinned value stays in the session under a handle, whatever happens to its variable.
    """

    handles: Sequence[tf.Tensor]
    chosen: tf.Tensor  # a placeholder for handles of pinned values
    values: Sequence[tf.Tensor]
    let_go: tf.Operation

    def free(self, session: Any, handles: Sequence[str]) -> None:
        """Release the values behind these handles. Closing the session releases them too."""
        with suppress(RuntimeError, tf.errors.OpError):
            session.run(self.let_go, {self.chosen: handles})


class SessionValues:
    """The part of a v1 graph between some tensors, and the values of its variables in a session.

    Call `pin` on the thread that trains, between two steps. A resource variable is copy-on-write: while the session
    keeps its buffer under a handle, the next update goes into another buffer. So pinning takes microseconds for each
    variable, of any size. A reference variable, TensorFlow 1's default, is updated in place. So the variable is copied,
    which takes time in proportion to its size. All variables of a session in another process are copied, too.

    The thread that converts pinned values to arrays fetches the values in pieces, and each piece is then released.
    Values that were never fetched are released by the next `pin` or `tidy`.
    """

    def __init__(
        self,
        inputs: Any,
        outputs: Any,
        *,
        saver: Any = None,
        averages: Averages | None = None,
        allow_ops: Collection[str] = (),
    ) -> None:
        """Add to the graph the operations that pin values.

        Args:
            inputs: A tensor, several tensors, or tensors by the names that callers use. A tensor may be given by its
                name in the default graph.
            outputs: Like `inputs`.
            saver: A Saver. All variables that it saves are published under its names, so that it can restore them.
                Without a Saver, only variables between the tensors are published, under their own names.
            averages: Returns the variable to publish in place of a variable, or None.
            allow_ops: Ops that followers are configured to allow.

        Raises GraphError for a graph that is finalised or cannot be captured, UnsafeGraphError for a graph that
        followers refuse, SettingsError for an average with another shape or dtype than its variable.
        """
        inputs, outputs = tensors(inputs), tensors(outputs)
        draft = draft_of_tensors(inputs, outputs, saver=saver)
        captured = finish(draft)
        self.digest = captured.digest
        self.content = captured.to_bytes()
        Graph.check_file(self.content, allowed=tuple(allow_ops))
        self.graph = tf.nest.flatten(outputs, expand_composites=True)[0].graph
        if self.graph.finalized:
            raise GraphError("the graph is finalised: publish with a PublishHook, or prepare that before the session")
        names = {parameter.name for parameter in captured.parameters}
        parameters = [parameter for parameter in draft.parameters if parameter.name in names]
        if saver is not None:
            nodes = {node.name: node for node in self.graph.as_graph_def().node}
            saved = saved_by(nodes, saver.as_saver_def().save_tensor_name)
            parameters += [parameter for parameter in saved if parameter.name not in names]
        self._parts = _parts(parameters)
        average_of = {} if averages is None else _averages(self.graph, averages)
        with self.graph.as_default(), self.graph.control_dependencies(None), v1.name_scope("publish"):
            self._reads = {
                parameter.node: self._read(parameter, average_of.get(parameter.node, parameter.node))
                for parameter in parameters
            }
            sizes = [read.dtype.size * (read.shape.num_elements() or 0) for read in self._reads.values()]
            self._groups = {tuple(nodes): self._group(nodes) for nodes in divide(list(self._reads), sizes, PIECE)}
        self._run: tuple[Any, Callable[[], Any]] | None = None  # the last session, and the call that pins in it
        self._left: deque[tuple[_Group, Any, Sequence[str]]] = deque()  # pinned values that were never fetched

    def pin(self, values: Any = None) -> dict[str, Any]:
        """Return the values of the variables in a session, by name. Only one thread may convert them to arrays.

        `values` is the session. Raises SettingsError for anything but a session of the graph, PublishError if the
        session is closed, or a variable has no value in it yet.
        """
        session = values
        if not isinstance(session, v1.Session | v1.InteractiveSession) or session.graph is not self.graph:
            raise SettingsError(f"expected a Session of the graph that is published, found {session!r}")
        try:
            values = self._copied(session) if session.sess_str else self._held(session)
        except tf.errors.FailedPreconditionError as error:
            raise PublishError(f"a variable has no value to be published yet: {error.message}") from error
        except (RuntimeError, tf.errors.CancelledError) as error:
            raise PublishError(
                "the session is closed: publish, or leave the publisher's block, before it is"
            ) from error
        pinned = {}
        for name, parameters in self._parts.items():
            parts = [(parameter.part, values[parameter.node]) for parameter in parameters if parameter.part is not None]
            pinned[name] = _Whole(parts) if parts else values[parameters[0].node]
        return pinned

    def tidy(self) -> None:
        """Release pinned values that nobody refers to and nobody fetched."""
        while self._left:
            group, session, handles = self._left.popleft()
            group.free(session, handles)

    def _copied(self, session: Any) -> dict[str, Any]:
        values = session.run(self._reads)
        return {node: _array(values[node], read.dtype) for node, read in self._reads.items()}

    def _held(self, session: Any) -> dict[str, Any]:
        if self._run is None or self._run[0] is not session:
            self._run = session, session.make_callable([list(group.handles) for group in self._groups.values()])
        self.tidy()
        values: dict[str, Any] = {}
        for (nodes, group), handles in zip(self._groups.items(), self._run[1](), strict=True):
            # Use raw handles: to free a handle object, TensorFlow would add operations to the graph.
            raw = [handle.get_raw_handle() for handle in handles]
            pinned = _Pinned(group, session, raw, self._left)
            values.update({node: _Value(pinned, at) for at, node in enumerate(nodes)})
        return values

    def _read(self, parameter: Parameter, node: str) -> Any:
        """Add a read of a variable: of its buffer, or of a copy if the variable is updated in place."""
        op = self.graph.get_operation_by_name(node)
        with self.graph.colocate_with(op, ignore_existing=True):
            if op.type == "VarHandleOp":
                # By default a read copies a variable if its rows were looked up or updated.
                with self.graph.control_dependencies([tf.raw_ops.DisableCopyOnRead(resource=op.outputs[0])]):
                    value = tf.raw_ops.ReadVariableOp(resource=op.outputs[0], dtype=op.get_attr("dtype"))
            else:
                value = tf.raw_ops.DeepCopy(x=op.outputs[0])
        if node != parameter.node and (value.dtype, value.shape) != (parameter.spec.dtype, parameter.spec.shape):
            expected = f"{parameter.spec.dtype.name} {parameter.spec.shape}"
            found = f"{value.dtype.name} {value.shape}, {node!r}"
            raise SettingsError(f"the average of {parameter.node!r}: expected {expected}, found {found}")
        return value

    def _group(self, nodes: Sequence[str]) -> _Group:
        chosen = v1.placeholder(tf.string, [len(nodes)])
        handles, values, freed = [], [], []
        for read, handle in zip([self._reads[node] for node in nodes], tf.unstack(chosen), strict=True):
            with self.graph.colocate_with(read.op, ignore_existing=True):
                handles.append(v1.get_session_handle(read))
                values.append(tf.raw_ops.GetSessionTensor(handle=handle, dtype=read.dtype))
                freed.append(tf.raw_ops.DeleteSessionTensor(handle=handle))
        return _Group(handles, chosen, values, tf.group(*freed))


class _Pinned:
    """The pinned values of a group. The session keeps them until they are fetched, or this object is freed."""

    def __init__(self, group: _Group, session: Any, handles: Sequence[str], left: deque[Any]) -> None:
        self._group, self._session, self._handles = group, session, handles
        self._arrays: list[Any] = []
        self._end = weakref.finalize(self, left.append, (group, session, handles))
        self._end.atexit = False

    def array(self, at: int) -> Array:
        """Return the value at this position. The first call fetches all. Raises PublishError for a closed session."""
        if self._end.detach() is not None:
            try:
                values = self._session.run(list(self._group.values), {self._group.chosen: self._handles})
            except (RuntimeError, tf.errors.OpError) as error:
                why = str(getattr(error, "message", error)).partition("\n")[0]
                raise PublishError(
                    f"the session ended before its values were written: finish, or flush ({why})"
                ) from error
            finally:
                self._group.free(self._session, self._handles)
            self._arrays = [_array(value, read.dtype) for value, read in zip(values, self._group.values, strict=True)]
        array: Array = self._arrays[at]
        return array


@dataclass(frozen=True, slots=True)
class _Value:
    """One pinned value."""

    pinned: _Pinned
    at: int

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.pinned.array(self.at)


@dataclass(frozen=True, slots=True)
class _Whole:
    """A partitioned variable. Its parts form one tensor in a checkpoint."""

    parts: Sequence[tuple[PartRange, Any]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        arrays = [(part.offsets, np.asarray(value)) for part, value in self.parts]
        return assemble(tuple(self.parts[0][0].whole), arrays[0][1].dtype, arrays)


def tensors(structure: Any) -> Any:
    """Replace names in the structure by tensors of the default graph. Raises GraphError for an unknown name."""
    return tf.nest.map_structure(_tensor, structure)


def _tensor(tensor: Any) -> Any:
    if not isinstance(tensor, str):
        return tensor
    try:
        return v1.get_default_graph().get_tensor_by_name(full(tensor))
    except (KeyError, ValueError) as error:
        raise GraphError(f"expected the name of a tensor in the default graph, found {tensor!r}") from error


def _parts(parameters: Sequence[Parameter]) -> dict[str, list[Parameter]]:
    """Return, by name, each whole variable, or all parts of a partitioned variable.

    Raises GraphError if parts are missing.
    """
    by_name: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        by_name.setdefault(parameter.name, []).append(parameter)
    for name, parts in by_name.items():
        if (part := parts[0].part) is not None:
            known, whole = sum(prod(parameter.spec.shape) for parameter in parts), prod(part.whole)
            if known != whole:
                raise GraphError(
                    f"the outputs need only some parts of {name!r}, {known} of {whole} values: give the Saver of all"
                )
    return by_name


def _averages(graph: tf.Graph, averages: Averages) -> dict[str, str]:
    """Return the node of each variable's average, by the node of the variable, for variables that have an average."""
    nodes = {}
    for key in (v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.LOCAL_VARIABLES):
        for variable in graph.get_collection(key):
            average = averages(variable)
            if average is not None:
                nodes[variable.op.name] = average.op.name
    return nodes


def _array(value: Any, dtype: tf.DType) -> Array:
    """Convert a value of a session to an array, because sessions return scalars as numbers or bytes."""
    return np.asarray(value, object if dtype == tf.string else None)
