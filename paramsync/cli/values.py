"""Values given on the command line, as arrays."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paramsync.errors import SettingsError


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
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
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
    with Path(file).open("rb") as opened:  # numpy leaves a file open that it cannot read
        found = np.load(opened, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return Value(found)
        if key not in found:
            raise ValueError(f"{file} has the keys {', '.join(found)}; say which: @{file}:KEY")
        return Value(found[key])


def _from_json(text: str) -> Value:
    try:
        found = json.loads(text)
        array = np.array(found)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, @FILE.npy or @FILE.npz:KEY, found {_start(text)} ({error})") from error
    except ValueError as error:
        raise ValueError(f"expected rows of one length, found {_start(text)}") from error
    kinds = {type(one) for one in np.array(found, dtype=object).flat}
    if kinds <= {int, float} and array.dtype.kind in "if":
        return Value(array, maybe_float=True) if array.dtype.kind == "i" else Value(array.astype(np.float32))
    if kinds not in ({str}, {bool}):
        raise ValueError(f"expected numbers, strings or booleans, of one kind, found {_start(text)}")
    return Value(array)


def _start(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
