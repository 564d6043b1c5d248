"""Computes questions (inputs for a signature of a version): one by one, or several of one version in one call.

Any thread may use this module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.errors import RequestError
from paramsync.graphs.parameters import alias
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident

_LARGE = 1 << 20  # bytes: `_argument` copies arrays of at least this size

Arrays = Mapping[str, npt.NDArray[Any]]


def called(resident: Resident, signature: str, inputs: Arrays, outputs: Collection[str] = ()) -> Answer:
    """Compute the named outputs, or all. The inputs must fit the signature; their arrays must not change later.

    Raises TensorFlow's errors, and RequestError if a kernel rejects strings that are not text.
    """
    # The op that calls the graph converts arrays to tensors, at a fraction of the cost of tf.constant.
    given: Any = {name: _argument(value) for name, value in inputs.items()}
    try:
        with resident.computing():
            tensors = resident.graph(resident.parameters, given, signature=signature, outputs=outputs)
    except UnicodeDecodeError as error:  # the kernel's message contains bytes of its inputs
        raise RequestError(error.object.decode(errors="backslashreplace")) from error
    return {name: _array(tensor) for name, tensor in tensors.items()}


def answer(question: Question) -> Answer:
    """Compute one question. Raises as `called` does."""
    return called(question.resident, question.signature, question.inputs, question.outputs)


def answers(questions: Sequence[Question]) -> list[Answer | Exception]:
    """Return the answer of each question, or its error. All questions must be for one signature of one version.

    They share a call. If this call fails, each question is computed alone, so that a bad question affects no other.
    """
    if len(questions) > 1:
        with suppress(Exception):  # the question at fault fails again when it is computed alone
            return [*_answer_together(questions)]
    return [_try(question) for question in questions]


def rows_of(question: Question) -> int | None:
    """Return the number of rows that all inputs have; None if the numbers differ, or if inputs are scalars."""
    counts = {array.shape[0] if array.ndim else None for array in question.inputs.values()}
    return counts.pop() if len(counts) == 1 else None


def _answer_together(questions: Sequence[Question]) -> list[Answer]:
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


def _try(question: Question) -> Answer | Exception:
    try:
        return answer(question)
    except tf.errors.OpError as error:
        # The error's traceback refers to frames, and these refer to the version and to the list that gets the error.
        # This circle would keep the version in memory until a garbage collection.
        error.__context__ = None
        bare: Exception = error.with_traceback(None)
        return bare
    except Exception as error:  # noqa: BLE001, any error is raised to the caller that waits for this answer
        return error


def _argument(array: npt.NDArray[Any]) -> Any:
    """Prepare an array for the op that calls the graph.

    This op would copy an unaligned array into memory that TensorFlow keeps. So large arrays are copied here,
    without the GIL, into aligned memory that is returned to the system.
    """
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
    """Return the tensor as an array in the same memory. A scalar is copied."""
    array = tensor.numpy()
    return array if isinstance(array, np.ndarray) else np.array(array, tensor.dtype.as_numpy_dtype)
