"""Takes parameters by name or from a checkpoint, checks that they fit a graph, and puts them in the graph's order.

The key of a variable in a checkpoint is the shortest path to it from the saved object. So the key can differ between
checkpoints: an optimizer may add a shorter path, a Checkpoint that contains the model makes the path longer, and an
export has other paths.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import ParameterError
from paramsync.graphs.graph import Graph
from paramsync.graphs.specs import check
from paramsync.graphs.specs import located as _located
from paramsync.host.files import shown
from paramsync.tensorbundle.index import OBJECT_GRAPH


def arrange(graph: Graph, values: Mapping[str, Any], *, where: str = "the graph") -> tuple[tf.Tensor, ...]:
    """Return the values in the order of `graph.parameters`. Arrays are copied, tensors are not.

    Raises ParameterError, which names `where`, and lists missing names, unneeded names, and wrong dtypes or shapes.
    """
    wanted = {spec.name for spec in graph.parameters}
    extra = [name for name in values if name not in wanted]
    tensors = {name: _tensor(value) for name, value in values.items() if name in wanted}
    check(graph.parameters, tensors, lambda tensor: (tensor.dtype.name, tuple(tensor.shape)), where=where, extra=extra)
    return tuple(tensors[spec.name] for spec in graph.parameters)


def read(graph: Graph, checkpoint: Path | Bundle, *, where: str | None = None) -> tuple[tf.Tensor, ...]:
    """Read the parameters of a graph from a checkpoint of ours or of TensorFlow. Ignores all other tensors.

    Checks the checksums of the parameters, and that all values are finite. `checkpoint` is a prefix or a bundle. The
    tensors share the bundle's memory if that is safe. Raises ParameterError for a parameter that is missing or does not
    fit, CorruptCheckpointError for a damaged checkpoint.
    """
    bundle = checkpoint if isinstance(checkpoint, Bundle) else Bundle.open(Path(checkpoint), mapped=False)
    keys = located(graph, bundle, where=where)
    bundle.verify(set(keys), finite=True)
    return shared(bundle, keys)


def located(graph: Graph, bundle: Bundle, *, where: str | None = None) -> tuple[str, ...]:
    """Like `specs.located`, but also finds a parameter that the checkpoint has under another path of its objects."""
    return _located(graph, bundle, where=where, keys_of=keys_of)


def shared(bundle: Bundle, keys: Iterable[str]) -> tuple[tf.Tensor, ...]:
    """Return checked entries of a bundle as tensors; see `alias`. Raises as `Bundle.array` does."""
    return tuple(alias(bundle.array(key)) for key in keys)


def _tensor(value: Any) -> tf.Tensor:
    """Return the value as a tensor. An array is copied to the CPU, because the caller may write to it later."""
    if isinstance(value, tf.Tensor):
        return value
    if isinstance(value, np.ndarray):
        with tf.device("CPU:0"):
            return tf.constant(value)
    return tf.convert_to_tensor(value)


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def alias(array: npt.NDArray[np.generic]) -> tf.Tensor:
    """Return the array as a tensor on the CPU, which shares the array's memory if that is safe.

    An array is copied if it is unaligned, not contiguous or read-only, or if dlpack lacks its dtype (strings, floats of
    one byte, quantized and other small integers). A tensor that shares memory keeps the array alive. Nobody may write
    to the array as long as the tensor lives.
    """
    if _can_share(array):
        if array.dtype == _BFLOAT16:
            with tf.device("CPU:0"):
                return tf.bitcast(_shared(array.view(np.uint16)), tf.bfloat16)  # shares the memory, read as bfloat16
        tensor = _shared(array)
        if array.dtype.kind != "b" or tensor.dtype == tf.bool:  # older versions of numpy export bool as bytes
            return tensor
    with tf.device("CPU:0"):
        return tf.constant(array)


def _shared(array: npt.NDArray[np.generic]) -> tf.Tensor:
    exporter: Any = array  # numpy's stubs declare the method only for arrays of numbers, such as this array
    return tf.experimental.dlpack.from_dlpack(exporter.__dlpack__())


def _can_share(array: npt.NDArray[np.generic]) -> bool:
    return bool(
        ((array.dtype.isbuiltin == 1 and array.dtype.kind in "biufc") or array.dtype == _BFLOAT16)
        and array.size
        and array.flags.c_contiguous
        and array.flags.writeable  # numpy does not export read-only arrays
        and array.ctypes.data % ALIGNMENT == 0
    )


# Keys in checkpoints of TensorFlow 2 ----------------------------------------------------------------------------------

_ATTRIBUTES = "/.ATTRIBUTES/"
_UNNAMED = re.compile(r"(Variable(_\d+)?)?")  # TensorFlow's names for variables that got no name
_TRIED = 2_000_000  # the most paths to try from objects other than the root


def keys_of(bundle: Bundle, names: Iterable[str], called: Mapping[str, str] | None = None) -> dict[str, str]:
    """Find the checkpoint's keys for these names, which are keys of another checkpoint.

    1. Look up the name itself as a key, then the variable at the end of its path from the root.
    2. If a name is still missing, look for another object from which all paths exist. If there is exactly one, use the
       keys of the variables at the ends of its paths.
    3. Otherwise look up the framework's names of the variables, given in `called`, if the names are unique.

    Raises ParameterError if several objects have all paths, CorruptCheckpointError for a damaged object graph.
    """
    names = list(names)
    keys = {name: name for name in names if name in bundle.entries}
    if len(keys) == len(names) or OBJECT_GRAPH not in bundle.entries:
        return keys
    nodes = _nodes(bundle)
    if nodes is None:
        return keys
    ways = Ways(nodes)
    from_root = {name: ways.key(name) for name in names if name not in keys}
    keys |= {name: key for name, key in from_root.items() if key in bundle.entries}
    if len(keys) == len(names):
        return keys
    return _from_elsewhere(bundle, ways, names) or _by_call(bundle, nodes, names, called or {}) or keys


class Ways:
    """The objects of a checkpoint or a SavedModel, found by their paths."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = nodes
        self._children: dict[int, Mapping[str, int]] = {}  # the children of each visited node, by local name

    def node(self, name: str, start: int = 0) -> int | None:
        """Follow the path in a key from node `start`. Returns the number of the last node, or None."""
        at = start
        for step in name.partition(_ATTRIBUTES)[0].split("/"):
            following = self.children(at).get(_local(step))
            if following is None:
                return None
            at = following
        return at if 0 <= at < len(self.nodes) else None

    def children(self, at: int) -> Mapping[str, int]:
        if not 0 <= at < len(self.nodes):
            return {}
        if at not in self._children:
            self._children[at] = {child.local_name: child.node_id for child in self.nodes[at].children}
        return self._children[at]

    def key(self, name: str, start: int = 0) -> str:
        """Return the key of the variable at the end of the path in `name`; "" if there is none."""
        at = self.node(name, start)
        attributes = () if at is None else self.nodes[at].attributes
        wanted = name.partition(_ATTRIBUTES)[2]
        return next((attribute.checkpoint_key for attribute in attributes if attribute.name == wanted), "")


def _nodes(bundle: Bundle) -> Sequence[Any] | None:
    bundle.verify([OBJECT_GRAPH])
    try:
        content = bundle.array(OBJECT_GRAPH).item()
        nodes: Sequence[Any] = trackable_object_graph_pb2.TrackableObjectGraph.FromString(content).nodes
    except (DecodeError, ValueError, TypeError):
        return None
    return nodes


def _from_elsewhere(bundle: Bundle, ways: Ways, names: Sequence[str]) -> dict[str, str]:
    """Find an object other than the root from which all paths exist. Returns the keys of all names, or an empty dict.

    Raises ParameterError if there are several.
    """
    candidates: dict[tuple[str, ...], int] = {}
    left = _TRIED
    for start in _starts(ways, names):
        keys = list(takewhile(bundle.entries.__contains__, (ways.key(name, start) for name in names)))
        if len(keys) == len(names):
            candidates.setdefault(tuple(keys), start)
        if len(candidates) > 1:
            some = " and ".join(f"{shown(keys_there[0])}, ..." for keys_there in candidates)
            raise ParameterError(
                str(bundle.prefix), expected=f"one object with {shown(names[0])}, ...", found=f"several: {some}"
            )
        left -= len(keys) + 1
        if left < 0:
            return {}
    return dict(zip(names, next(iter(candidates)), strict=True)) if candidates else {}


def _starts(ways: Ways, names: Sequence[str]) -> Iterator[int]:
    first = _local(names[0].partition("/")[0])
    return (at for at in range(1, len(ways.nodes)) if first in ways.children(at))


def _by_call(bundle: Bundle, nodes: Sequence[Any], names: Sequence[str], called: Mapping[str, str]) -> dict[str, str]:
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for node in nodes:
        for attribute in node.attributes:
            if not _UNNAMED.fullmatch(attribute.full_name) and attribute.checkpoint_key in bundle.entries:
                keys[attribute.full_name].add(attribute.checkpoint_key)
    full_names = [called.get(name, "") for name in names]
    if len(set(full_names)) != len(names) or not all(len(keys.get(name, ())) == 1 for name in full_names):
        return {}
    return {name: next(iter(keys[full_name])) for name, full_name in zip(names, full_names, strict=True)}


def _local(step: str) -> str:
    """Unescape one step of a key's path."""
    return re.sub(r"\.(.)", lambda escaped: "/" if escaped[1] == "S" else escaped[1], step)
