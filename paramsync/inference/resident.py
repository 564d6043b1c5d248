"""Resident: a version in memory, complete and checked, which predicts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paramsync.errors import GraphError, InputError, RequestError
from paramsync.graphs.graph import Graph
from paramsync.graphs.specs import DEFAULT_SIGNATURE, Signature, TensorSpec
from paramsync.host.files import line
from paramsync.version import Version

_NUMBERS = "biufcV"  # kinds of numpy dtypes; bfloat16 is of kind V


def fitting(inputs: Mapping[str, Any], signature: Signature) -> dict[str, tf.Tensor | npt.NDArray[Any]]:
    """Turn lists into arrays, and convert numbers to the signature's dtypes. Returns all inputs.

    Tensors, and inputs that the signature does not have, stay as they are. Raises InputError if a conversion would
    change values (see `_equal`).
    """
    specs = signature.inputs
    return {name: _fitting(name, value, specs[name]) if name in specs else value for name, value in inputs.items()}


def _fitting(name: str, value: Any, spec: TensorSpec) -> tf.Tensor | npt.NDArray[Any]:
    if isinstance(value, tf.Tensor):
        return value
    array = _array(name, value, spec)
    wanted: np.dtype[Any] = np.dtype(tf.as_dtype(spec.dtype).as_numpy_dtype)
    if array.dtype == wanted or array.dtype.kind not in _NUMBERS or wanted.kind not in _NUMBERS:
        return array  # the signature's own check refuses misfits
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(wanted) if _same_kind(array.dtype, wanted) else None
    if converted is None or not _equal(array, converted):
        advice = f"{array.dtype}, of which some would change: pass .astype({spec.dtype!r}) where that is meant"
        raise InputError(f"input {name!r}", expected=spec, found=advice)
    return converted


def _array(name: str, value: Any, spec: TensorSpec) -> npt.NDArray[Any]:
    try:
        return np.asarray(value, dtype=object if spec.dtype == "string" else None)
    except ValueError as error:
        raise InputError(f"input {name!r}", expected=spec, found="rows of different lengths") from error


def _same_kind(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether numbers of one dtype may be converted to the other. A float may not become an integer."""
    return found.kind in "biu" or (wanted.kind not in "iu" and found.kind != "c") or wanted.kind == "c"


def _equal(array: npt.NDArray[Any], converted: npt.NDArray[Any]) -> bool:
    """Return whether integers kept their values, and no finite float became infinite. Floats may be rounded."""
    if array.dtype.kind in "biu":
        return bool((converted.astype(array.dtype) == array).all())
    return bool((np.isfinite(array) == np.isfinite(converted)).all())


_log = logging.getLogger("paramsync.replica")


@dataclass(frozen=True, eq=False)
class Resident:
    """A version in memory, complete and checked. Immutable, so a request is answered from the version that it took."""

    version: Version
    graph: Graph
    parameters: tuple[tf.Tensor, ...]
    parts: tuple[tuple[str, Version], ...] = ()
    """The name and version of each part of a joined version."""

    def predict(
        self,
        inputs: Mapping[str, Any],
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Collection[str] = (),
    ) -> dict[str, tf.Tensor]:
        """Compute the named outputs, or all. Raises UnknownSignatureError, InputError, RequestError.

        Inputs are tensors, arrays or lists. Numbers of another dtype are converted (see `fitting`). Do not call this
        while TensorFlow traces, because the trace would always use this version.
        """
        if not tf.executing_eagerly():
            raise RequestError("predict computes at once: call it outside of tf.function and tf.Graph().as_default()")
        if signature in self.graph.signatures:
            inputs = fitting(inputs, self.graph.signatures[signature])
        self.graph.check_inputs(signature, inputs, outputs)
        tensors = {name: tf.convert_to_tensor(value) for name, value in inputs.items()}
        return self.graph(self.parameters, tensors, signature=signature, outputs=outputs)

    def computing(self) -> AbstractContextManager[None]:
        """Return a context for each call of the graph. Subclasses use it to notice endless calls."""
        return _UNSEEN


_UNSEEN = nullcontext()


def warm(resident: Resident) -> None:
    """Call each signature of a new graph once, because the first call is many times slower than later calls.

    Raises GraphError only for lack of memory: a graph that cannot compute made-up inputs may well compute real inputs.
    """
    number = resident.version.number
    for name, signature in resident.graph.signatures.items():
        try:
            inputs = {spec.name: _blank(spec) for spec in signature.inputs.values()}
            resident.graph(resident.parameters, inputs, signature=name)
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            raise GraphError(f"signature {name!r} wants more memory than there is: {line(str(error))}") from error
        except Exception as error:  # noqa: BLE001, the graph may still compute real inputs
            _log.debug("version %d: %s was not called beforehand: %s", number, name, error)


def _blank(spec: TensorSpec) -> tf.Tensor:
    """Return a tensor of zeros or empty strings. Unknown dimensions have size 1."""
    return tf.zeros([1 if size is None else size for size in spec.shape or ()], tf.as_dtype(spec.dtype))
