"""ExternalValues: values of any framework, by name, for a graph that is in a store. Knows no TensorFlow."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError

from paramsync import dtypes
from paramsync.errors import CorruptCheckpointError, GraphError, ParameterError, SettingsError, StoreError
from paramsync.host import files
from paramsync.store.store import graph_file, is_digest
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.v1 import bundle_pb2, graph_pb2

Values = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Arrays by name, or a function that returns them when they are needed."""

_SHOWN = 8  # names in a message


class ExternalValues:
    """The parameters of a graph. Values come by the name in checkpoints, or by the framework's name of the variable."""

    def __init__(self, content: bytes, *, copy: bool = True) -> None:
        """`content` is a graph file. Raises GraphError where it is none."""
        try:
            message = graph_pb2.Graph.FromString(content)
        except DecodeError as error:
            raise GraphError(f"the graph file is not readable: {error}") from error
        self.digest = message.digest
        self.content = content
        self._copy = copy
        self._object_graph = message.object_graph
        self._parameters = {parameter.name: parameter for parameter in message.parameters}
        uses = Counter(parameter.variable for parameter in message.parameters)
        named = {
            parameter.variable: parameter.name for parameter in message.parameters if uses[parameter.variable] == 1
        }
        self._keys = named | {name: name for name in self._parameters}
        self._called = {name: name for name in self._parameters} | {key: name for name, key in named.items() if name}

    @classmethod
    def in_store(cls, store: Path, digest: str | None, *, copy: bool) -> ExternalValues:
        """The graph of that digest, or the only graph in the store. Raises SettingsError, GraphError, StoreError."""
        digests = _digests(store)
        if digest is None:
            if len(digests) != 1:
                raise SettingsError(_which(store, digests))
            (digest,) = digests
        if digest not in digests:
            listed = ", ".join(digests) or "none"
            raise SettingsError(f"store {store}: expected graph {files.shown(digest)}, found {listed}")
        path = graph_file(store, digest)
        try:
            source = cls(files.content(path, limit=files.MAX_MESSAGE), copy=copy)
        except OSError as error:
            raise StoreError(store, f"{path.name} cannot be read: {error.strerror}") from error
        except (GraphError, CorruptCheckpointError) as error:
            raise GraphError(f"{path}: {error}; publish the graph again") from error
        if source.digest != digest:
            raise GraphError(f"{path}: expected graph {digest}, found {files.shown(source.digest)}; publish it again")
        return source

    def pin(self, values: Values | None = None) -> dict[str, Any]:
        """The values by their keys in a checkpoint, so that training cannot change them any more.

        Raises SettingsError where there are none, and ParameterError, before anything is copied, where they do not fit
        the graph.
        """
        if values is None:
            raise SettingsError(
                "the values of a graph that was published beforehand are needed: publish(step, values={name: array})"
            )
        by_key = self._by_key(values() if callable(values) else values)
        self._check(by_key)
        pinned = {key: _pinned(value, copy=self._copy) for key, value in by_key.items()}
        if self._object_graph:
            pinned[OBJECT_GRAPH] = np.array(self._object_graph, dtype=object)
        return pinned

    def _by_key(self, values: Mapping[str, Any]) -> dict[str, Any]:
        known = {name: self._keys[name] for name in values if name in self._keys}
        by_key = {key: _array_like(values[name]) for name, key in known.items()}
        missing = [self._called[key] for key in self._parameters if key not in by_key]
        if missing:
            expected = f"{_listed(missing)} ({len(missing)} missing)"
            raise ParameterError("the graph", expected=expected, found=_listed(values))
        extra = [name for name in values if name not in self._keys]
        if extra:
            found = f"{_listed(extra)} too ({len(extra)} not needed)"
            raise ParameterError("the graph", expected=_listed(self._called.values()), found=found)
        if len(by_key) < len(known):
            twice = [name for name, count in Counter(known.values()).items() if count > 1]
            raise ParameterError("the graph", expected="each value once", found=f"{_listed(twice)} under two names")
        return by_key

    def _check(self, by_key: Mapping[str, Any]) -> None:
        wrong = []
        for key, parameter in self._parameters.items():
            dtype, shape = _dtype(by_key[key]), tuple(by_key[key].shape)
            if dtype != dtypes.name(parameter.dtype) or not _fits(parameter.shape, shape):
                expected = f"{self._called[key]} {dtypes.name(parameter.dtype)} {_dimensions(parameter.shape)}"
                wrong.append((expected, f"{dtype} {list(shape)}"))
        if wrong:
            more = f" ({len(wrong)} differ)" if len(wrong) > 1 else ""
            raise ParameterError(
                "the graph",
                expected=", ".join(expected for expected, _ in wrong[:_SHOWN]) + more,
                found=", ".join(found for _, found in wrong[:_SHOWN]),
            )


def _digests(store: Path) -> list[str]:
    try:
        names = files.names(store)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(store, f"cannot be read: {error.strerror}") from error
    graphs = [name[len("graph-") : -len(".pb")] for name in names if name.startswith("graph-") and name.endswith(".pb")]
    return sorted(filter(is_digest, graphs))


def _which(store: Path, digests: list[str]) -> str:
    if digests:
        return f"store {store}: expected one graph, found {len(digests)}; say which by its digest: {', '.join(digests)}"
    return (
        f"store {store}: expected a graph that was published beforehand, found none;"
        f" publish it: paramsync graph publish MODULE:BUILD {store}"
    )


def _array_like(value: Any) -> Any:
    """The value with a dtype and a shape; for a variable, the value that it holds now."""
    if hasattr(value, "assign") and hasattr(value, "value"):  # a variable of Keras or TensorFlow
        value = value.value() if callable(value.value) else value.value
        return _array_like(value)
    if hasattr(value, "detach"):  # PyTorch
        return value.detach()
    return value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)


def _pinned(value: Any, *, copy: bool) -> Any:
    """The value where training does not change it; waits for no device where that can be helped."""
    framework = type(value).__module__.partition(".")[0]
    if framework == "torch":
        return _of_torch(value, copy=copy)
    if not copy:
        return value
    if framework in ("jax", "jaxlib"):
        # A step that it is donated to would delete it. What numpy shares, on the CPU, is left alone until numpy lets go
        # of it; another device makes a copy in its own time.
        return np.asarray(value) if all(device.platform == "cpu" for device in value.devices()) else value.copy()
    if framework == "tensorflow" or (isinstance(value, np.ndarray) and not _may_change(value)):
        return value
    return np.array(value, order="C")


def _of_torch(tensor: Any, *, copy: bool) -> Any:
    on_cpu = tensor.cpu()  # itself where it is there already
    torch = sys.modules["torch"]
    if on_cpu.dtype == torch.bfloat16:  # which numpy does not know
        return _pinned(on_cpu.view(torch.int16).numpy().view(ml_dtypes.bfloat16), copy=copy)
    return _pinned(on_cpu.numpy(), copy=copy)


def _may_change(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return False


def _dtype(value: Any) -> str:
    if isinstance(value.dtype, np.dtype):
        number = dtypes.from_numpy(value.dtype)
        return str(value.dtype) if number is None else dtypes.name(number)
    return str(getattr(value.dtype, "name", value.dtype)).rpartition(".")[2]


def _fits(expected: bundle_pb2.TensorShape, shape: tuple[int, ...]) -> bool:
    if expected.unknown_rank:
        return True
    sizes = [dim.size for dim in expected.dim]
    return len(sizes) == len(shape) and all(known in (-1, size) for known, size in zip(sizes, shape, strict=True))


def _dimensions(shape: bundle_pb2.TensorShape) -> str:
    if shape.unknown_rank:
        return "of any shape"
    return f"[{', '.join('?' if dim.size < 0 else str(dim.size) for dim in shape.dim)}]"


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(map(str, names))
    shown = [name if name.isprintable() else files.shown(name) for name in ordered[:_SHOWN]]
    return f"{', '.join(shown) or 'nothing'}{' and more' if len(ordered) > _SHOWN else ''}"
