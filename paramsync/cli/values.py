"""Values given on the command line, as arrays."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from paramsync.errors import SettingsError

_encoded = np.frompyfunc(str.encode, 1, 1)  # numpy's own strings would drop zeros at the end


@dataclass(frozen=True, slots=True)
class Value:
    array: np.ndarray
    maybe_float: bool = False  # whole numbers written in JSON may be meant as float32

    def as_float(self) -> Value:
        return Value(self.array.astype(np.float32))


def read(name: str, text: str, *, rows: int | None = None) -> Value:
    """The value of the input called name: JSON, @FILE.npy or @FILE.npz:KEY. Raises SettingsError."""
    try:
        value = _from_file(text[1:]) if text.startswith("@") else _from_json(text)
    except OSError as error:
        raise SettingsError(f"input {name!r}: {error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"input {name!r}: {error}") from error
    if rows is None:
        return value
    if value.array.ndim == 0:
        raise SettingsError(f"input {name!r}: --rows needs an array, found the single value {text}")
    return Value(value.array[:rows], value.maybe_float)


def _from_file(text: str) -> Value:
    file, colon, key = text.rpartition(":")
    if not (colon and file.endswith(".npz")):
        file, key = text, ""
    if not Path(file).name.endswith((".npy", ".npz")):
        raise ValueError(f"expected JSON, @FILE.npy or @FILE.npz:KEY, found @{text}")
    if not stat.S_ISREG(Path(file).stat().st_mode):
        raise ValueError(f"expected a regular file, found {file}, which is none")
    with Path(file).open("rb") as opened:  # numpy leaves a file open that it cannot read
        try:
            return Value(_array(opened, file, key))
        except Exception as error:
            raise ValueError(f"{file}: {' '.join(str(error).split()) or type(error).__name__}") from error


def _array(opened: BinaryIO, file: str, key: str) -> np.ndarray:
    loaded = np.load(opened, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded
    if key not in loaded:
        raise ValueError(f"expected one of the keys {', '.join(loaded)}, as in @{file}:KEY, found {key or 'none'}")
    array: np.ndarray = loaded[key]
    return array


def _from_json(text: str) -> Value:
    try:
        value = json.loads(text, parse_float=_decimal)
    except OverflowError as error:
        raise _beyond("numbers that float32 has", error) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON, @FILE.npy or @FILE.npz:KEY, found {_start(text)} ({error})") from error
    try:
        array = np.array(value)
    except ValueError as error:
        raise ValueError(f"expected rows of one length, found {_start(text)}") from error
    elements = np.array(value, dtype=object)
    kinds = {type(element) for element in elements.flat}
    if kinds == {int}:
        return Value(_exact(elements, np.int64, "whole numbers that int64 has"), maybe_float=True)
    if kinds <= {int, float}:
        return Value(_exact(elements, np.float32, "numbers that float32 has"))
    if kinds not in ({str}, {bool}):
        raise ValueError(f"expected numbers, strings or booleans, of one kind, found {_start(text)}")
    return Value(np.array(_encoded(elements), object) if kinds == {str} else array)


def _decimal(text: str) -> float:
    """Infinity is said by that word alone. Raises OverflowError."""
    if math.isinf(number := float(text)):
        raise OverflowError(text)
    return number


def _exact(elements: np.ndarray, dtype: npt.DTypeLike, expected: str) -> np.ndarray:
    """The numbers in this dtype. Raises ValueError for the first that goes beyond it: what is finite stays so."""
    array = np.empty(elements.shape, dtype)
    with np.errstate(over="ignore"):
        for at, element in enumerate(elements.flat):
            try:
                array.flat[at] = number = array.dtype.type(element)
                fits = not np.isinf(number) or math.isinf(element)
            except OverflowError:
                fits = False
            if not fits:
                raise _beyond(expected, element)
    return array


def _beyond(expected: str, found: object) -> ValueError:
    return ValueError(f"expected {expected}, found {_start(str(found))}; others can be given as @FILE.npy")


def _start(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
