"""What a program passes to a model in process, as arrays of the dtypes that the signature asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paramsync.errors import InputError
from paramsync.graphs.graph import Signature, TensorSpec

_NUMBERS = "biufcV"  # kinds of dtypes; bfloat16 and its like are of kind V


def fitting(inputs: Mapping[str, Any], signature: Signature) -> dict[str, tf.Tensor | npt.NDArray[Any]]:
    """The inputs with lists as arrays, and numbers of another dtype converted where the model can see no difference.

    Tensors, and inputs that the signature does not know, stay as they are. Raises InputError.
    """
    specs = signature.inputs
    return {name: _fitting(name, value, specs[name]) if name in specs else value for name, value in inputs.items()}


def _fitting(name: str, value: Any, spec: TensorSpec) -> tf.Tensor | npt.NDArray[Any]:
    if isinstance(value, tf.Tensor):
        return value
    array = _array(name, value, spec)
    wanted: np.dtype[Any] = np.dtype(tf.as_dtype(spec.dtype).as_numpy_dtype)
    if array.dtype == wanted or array.dtype.kind not in _NUMBERS or wanted.kind not in _NUMBERS:
        return array  # the signature's own check refuses what does not fit
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
    """Whether values of the one dtype can be values of the other at all: a float is no integer."""
    return found.kind in "biu" or (wanted.kind not in "iu" and found.kind != "c") or wanted.kind == "c"


def _equal(array: npt.NDArray[Any], converted: npt.NDArray[Any]) -> bool:
    """Whether nothing changed but the last digits of floats, which a model of that dtype computes without."""
    if array.dtype.kind in "biu":
        return bool((converted.astype(array.dtype) == array).all())
    return bool((np.isfinite(array) == np.isfinite(converted)).all())
