"""Computes questions: alone, or several of one version in one call. Arrays in, arrays out; any thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.errors import RequestError
from paramsync.graphs.parameters import alias
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident

_LARGE = 1 << 20  # bytes

Arrays = Mapping[str, npt.NDArray[Any]]


def called(resident: Resident, signature: str, inputs: Arrays, outputs: Collection[str] = ()) -> Answer:
    """The outputs named, or all of them. The inputs are those of the signature, and must not change any more.

    Raises TensorFlow's errors, and RequestError where a kernel complains of strings that are no text.
    """
    # the op makes tensors of arrays at a fraction of the cost of making them one by one
    given: Any = {name: _given(value) for name, value in inputs.items()}
    try:
        with resident.computing():
            tensors = resident.graph(resident.parameters, given, signature=signature, outputs=outputs)
    except UnicodeDecodeError as error:  # the kernel's own words, which contain bytes of its inputs
        raise RequestError(error.object.decode(errors="backslashreplace")) from error
    return {name: _array(tensor) for name, tensor in tensors.items()}


def answer(question: Question) -> Answer:
    """Raises as `called` does."""
    return called(question.resident, question.signature, question.inputs, question.outputs)


def answers(questions: Sequence[Question]) -> list[Answer | Exception]:
    """Each question's answer, or its error. All ask the same of the same version, and may share a call.

    Where the call fails each is computed alone, so that the fault of one affects no other.
    """
    if len(questions) > 1:
        try:
            return [*_together(questions)]
        except Exception:  # noqa: BLE001, whose fault it is shows when each is computed alone
            return [_tried(question) for question in questions]
    return [_tried(question) for question in questions]


def rows_of(question: Question) -> int | None:
    """How many rows all its inputs have; None where they have not all the same number of them."""
    counts = {array.shape[0] if array.ndim else None for array in question.inputs.values()}
    return counts.pop() if len(counts) == 1 else None


def _together(questions: Sequence[Question]) -> list[Answer]:
    first = questions[0]
    inputs = {name: np.concatenate([question.inputs[name] for question in questions]) for name in first.inputs}
    arrays = called(first.resident, first.signature, inputs, first.outputs)
    counts = [len(next(iter(question.inputs.values()))) for question in questions]
    if any(len(array) != sum(counts) for array in arrays.values()):
        raise ValueError("an output has other rows than the inputs")
    ends = np.cumsum(counts).tolist()
    return [
        {name: array[end - count : end] for name, array in arrays.items()}
        for end, count in zip(ends, counts, strict=True)
    ]


def _tried(question: Question) -> Answer | Exception:
    try:
        return answer(question)
    except tf.errors.OpError as error:
        # frames would keep the version in memory until garbage is collected, for they lead to the list that this goes
        # into; the message says all
        error.__context__ = None
        bare: Exception = error.with_traceback(None)
        return bare
    except Exception as error:  # noqa: BLE001, the edge of a thread: it is raised where the answer is awaited
        return error


def _given(array: npt.NDArray[Any]) -> Any:
    """What the op makes a tensor of. It copies what is not aligned into memory that TensorFlow keeps for ever; what is
    large is copied here, without the GIL, into memory that goes back to the system."""
    if array.dtype.kind not in "fiubc":
        return tf.constant(array)
    return array if array.nbytes < _LARGE else alias(_aligned(array))


def _aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    aligned = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(aligned, array)
    return aligned


def _array(tensor: Any) -> npt.NDArray[Any]:
    """The tensor's own memory; of a scalar a copy."""
    array = tensor.numpy()
    return array if isinstance(array, np.ndarray) else np.array(array, tensor.dtype.as_numpy_dtype)
