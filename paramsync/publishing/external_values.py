"""ExternalValues: publishes values of any framework, by name, for a graph in a store. Needs no TensorFlow."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError

from paramsync import dtypes
from paramsync.errors import CorruptCheckpointError, GraphError, ParameterError, SettingsError, StoreError
from paramsync.graphs.specs import Shape, check, listed, spec_of
from paramsync.host import files
from paramsync.store.store import add_checksum, graph_file, is_digest
from paramsync.tensorbundle.index import OBJECT_GRAPH
from paramsync.v1 import graph_pb2

Values = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Arrays by name, or a function that returns arrays by name. The function is called when a publication is due."""


class ExternalValues:
    """Values for the parameters of a graph, named by checkpoint keys or by the framework's names of the variables."""

    def __init__(self, content: bytes, *, copy: bool = True) -> None:
        """`content` is a graph file. Raises GraphError if it cannot be read."""
        try:
            message = graph_pb2.Graph.FromString(content)
        except DecodeError as error:
            raise GraphError(f"the graph file is not readable: {error}") from error
        self.digest = message.digest
        self.content = content
        self._copy = copy
        self._object_graph = message.object_graph
        specs = {parameter.name: spec_of(parameter) for parameter in message.parameters}
        uses = Counter(parameter.variable for parameter in message.parameters)
        called = {
            parameter.name: parameter.variable
            for parameter in message.parameters
            if parameter.variable and uses[parameter.variable] == 1 and parameter.variable not in specs
        }
        self._wanted = {key: replace(spec, name=called.get(key, key)) for key, spec in specs.items()}
        self._keys = {spec.name: key for key, spec in self._wanted.items()} | {key: key for key in specs}

    @classmethod
    def in_store(cls, store: Path, digest: str | None, *, copy: bool) -> ExternalValues:
        """Read the graph with this digest, or the store's only graph. Raises SettingsError, GraphError, StoreError."""
        digests = _digests(store)
        if digest is None:
            if len(digests) != 1:
                raise SettingsError(_which(store, digests))
            (digest,) = digests
        if digest not in digests:
            there = ", ".join(digests) or "none"
            raise SettingsError(f"store {store}: expected graph {files.shown(digest)}, found {there}")
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
        """Return the values by their checkpoint keys. Values that training may change are copied.

        Raises SettingsError if there are no values, ParameterError if values do not fit the graph. Copies nothing
        before all values are checked.
        """
        if values is None:
            raise SettingsError(
                "the values of a graph that was published beforehand are needed: publish(step, values={name: array})"
            )
        by_key = self._fitting(_by_name(values))
        pinned = {key: _pinned(value, copy=self._copy) for key, value in by_key.items()}
        if self._object_graph:
            pinned[OBJECT_GRAPH] = np.array(self._object_graph, dtype=object)
        return pinned

    def _fitting(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values by key. Raises ParameterError, which uses the framework's names of the variables."""
        known = {name: self._keys[name] for name in values if name in self._keys}
        by_key = {key: _array_like(values[name]) for name, key in known.items()}
        if len(by_key) < len(known):
            twice = [name for name, count in Counter(known.values()).items() if count > 1]
            raise ParameterError("the graph", expected="each value once", found=f"{listed(twice)} under two names")
        extra = [str(name) for name in values if name not in self._keys]
        called = {self._wanted[key].name: value for key, value in by_key.items()}
        check([*self._wanted.values()], called, _kind, where="the graph", extra=extra)
        return by_key


class NamedArrays:
    """Publishes arrays by name, with a graph that has parameters and computes nothing: followers read the arrays."""

    def __init__(self, *, copy: bool = True) -> None:
        self.digest = ""
        self.content = b""
        self._copy = copy
        self._kinds: dict[str, tuple[Any, ...]] = {}

    def pin(self, values: Values | None = None) -> dict[str, Any]:
        """Return the arrays by name, as `ExternalValues.pin` does. Names, dtypes and shapes may differ in each call."""
        if values is None:
            raise SettingsError("the arrays to publish are needed: publish(step, values={name: array})")
        pinned = {name: _pinned(_array_like(value), copy=self._copy) for name, value in _by_name(values).items()}
        kinds = {name: (_numpy_dtype(value), tuple(value.shape)) for name, value in pinned.items()}
        if kinds != self._kinds:
            self._describe(kinds)
        return pinned

    def _describe(self, kinds: dict[str, tuple[Any, ...]]) -> None:
        message = graph_pb2.Graph()
        for name, (dtype, shape) in sorted(kinds.items()):
            if (number := dtypes.from_numpy(dtype)) is None:
                raise ParameterError(name, expected="a dtype of TensorFlow", found=str(dtype))
            parameter = message.parameters.add(name=name, dtype=number)
            for size in shape:
                parameter.shape.dim.add(size=size)
        self.digest = message.digest = hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
        self.content = add_checksum(message.SerializeToString(deterministic=True))
        self._kinds = kinds


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


def _by_name(values: Values) -> Mapping[str, Any]:
    """Return the values by name. Raises SettingsError for others, such as the list of Keras's `get_weights()`."""
    given = values() if callable(values) else values
    if not isinstance(given, Mapping):
        raise SettingsError(f"values: expected {{name: array}}, found a {type(given).__name__}")
    if unnamed := [name for name in given if not isinstance(name, str)]:
        raise SettingsError(f"values: expected names of type str, found {unnamed[0]!r}")
    return given


def _array_like(value: Any) -> Any:
    """Return the value, or a variable's current value, as an object with a dtype and a shape."""
    if hasattr(value, "assign") and hasattr(value, "value"):  # a variable of Keras or TensorFlow
        value = value.value() if callable(value.value) else value.value
        return _array_like(value)
    if hasattr(value, "detach"):  # PyTorch
        return value.detach()
    return value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)


def _pinned(value: Any, *, copy: bool) -> Any:
    """Return the value, or a copy if training may change the value.

    Waits for a device only to fetch a tensor of PyTorch.
    """
    framework = type(value).__module__.partition(".")[0]
    if framework == "torch":
        return _of_torch(value, copy=copy)
    if not copy:
        return value
    if framework in ("jax", "jaxlib"):
        # A training step that donates the array would delete its memory. On the CPU, numpy shares the buffer, and JAX
        # does not delete a shared buffer. On other devices, `copy` makes a copy in the background.
        return np.asarray(value) if all(device.platform == "cpu" for device in value.devices()) else value.copy()
    if framework == "tensorflow" or (isinstance(value, np.ndarray) and not _may_change(value)):
        return value
    return np.array(value, order="C")


def _of_torch(tensor: Any, *, copy: bool) -> Any:
    on_cpu = tensor.cpu()  # no copy if the tensor is on the CPU already
    torch = sys.modules["torch"]
    if on_cpu.dtype == torch.bfloat16:  # numpy has no bfloat16
        return _pinned(on_cpu.view(torch.int16).numpy().view(ml_dtypes.bfloat16), copy=copy)
    return _pinned(on_cpu.numpy(), copy=copy)


def _may_change(array: Any) -> bool:
    """Return whether the array's memory can be written to, through the array itself or its base."""
    owner = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return True
        owner = owner.base
    while isinstance(owner, memoryview):
        owner = owner.obj
    try:
        return owner is not None and not memoryview(owner).readonly
    except (TypeError, ValueError, BufferError, NotImplementedError):  # unknown: assume the worst
        return True


def _numpy_dtype(value: Any) -> np.dtype[Any]:
    """Return the dtype of an array of numpy or JAX, or of a tensor of TensorFlow."""
    dtype: np.dtype[Any] = np.dtype(getattr(value.dtype, "as_numpy_dtype", value.dtype))
    return dtype


def _kind(value: Any) -> tuple[str, Shape]:
    """Return the dtype and shape of an array of any framework."""
    if isinstance(value.dtype, np.dtype):
        number = dtypes.from_numpy(value.dtype)
        return str(value.dtype) if number is None else dtypes.name(number), tuple(value.shape)
    return str(getattr(value.dtype, "name", value.dtype)).rpartition(".")[2], tuple(value.shape)
