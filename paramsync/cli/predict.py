"""`paramsync predict`: sends a request to a model, and prints which version answered."""

from __future__ import annotations

import json
import math
import stat
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from paramsync.cli.formatting import console, duration, to_json
from paramsync.cli.settings import credentials
from paramsync.errors import RequestError, SettingsError
from paramsync.host.files import harmless
from paramsync.rpc.client import Prediction, Predictor

_ROWS = 12  # rows of an answer that a terminal shows
_VALUES = 12  # values of a row that a terminal shows
_UNBOUNDED = 1 << 30  # columns, more than any row has
_CLASSES = 1000  # longer rows get no argmax, because they are rarely scores of classes

_decoded = np.frompyfunc(lambda text: text.decode(errors="replace"), 1, 1)


def run(arguments: Namespace) -> bool:
    values: dict[str, Value] = {}
    for name, text in arguments.inputs:
        if name in values:
            raise SettingsError(f"input {name!r}: expected it once, found it again")
        values[name] = read_value(name, text, rows=arguments.rows)
    started = time.monotonic()
    with Predictor(arguments.server, credentials(arguments)) as predictor:
        prediction = _ask(predictor, arguments.model, values)
    if arguments.json:
        outputs = {name: _listed(array) for name, array in prediction.outputs.items()}
        sys.stdout.write(to_json({"model": arguments.model, "version": prediction.version, "outputs": outputs}))
        return True
    took = duration(time.monotonic() - started)
    screen = console()
    screen.print(f"{arguments.model}: version {prediction.version} answered in {took}", style="bold", soft_wrap=True)
    for name, array in sorted(prediction.outputs.items()):
        _show(screen, name, array)
    return True


def _ask(predictor: Predictor, model: str, values: Mapping[str, Value]) -> Prediction:
    """Send the request. If the server refuses whole numbers from JSON and wants float32, send them as float32."""
    values = dict(values)
    while True:
        try:
            return predictor.predict(model, {name: value.array for name, value in values.items()})
        except RequestError as error:
            refused = [name for name, value in values.items() if value.maybe_float and name in str(error)]
            if not refused or "float32" not in str(error):
                raise
            values |= {name: values[name].as_float() for name in refused}


def _listed(array: np.ndarray) -> object:
    if array.dtype == object:  # numpy's own strings would drop zeros at the end
        array = np.array(_decoded(array), object)
    return array.tolist()


def _show(screen: Console, name: str, array: np.ndarray) -> None:
    scores = array.ndim == 2 and 0 < array.shape[1] <= _CLASSES and array.dtype.kind in "fiu"
    rows = array.reshape(1, -1) if array.ndim == 0 else array
    watched = screen.is_terminal
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), expand=watched)
    table.add_column("row", justify="right", no_wrap=True)
    if scores:
        table.add_column("argmax", justify="right", no_wrap=True)
    kind = "string" if array.dtype == object else array.dtype
    table.add_column(f"{name}: {kind} {list(array.shape)}", no_wrap=True, overflow="ellipsis", ratio=1)
    count = min(_ROWS, len(rows)) if watched else len(rows)
    for number in range(count):
        row = rows[number : number + 1]  # a slice, because `rows[number]` may be bytes instead of an array
        table.add_row(
            str(number),
            *([str(int(row.argmax()))] if scores else []),
            _text(row, most=_VALUES if watched else row.size),
        )
    screen.print(table)
    if count < len(rows):
        screen.print(f"{len(rows) - count} more rows; --json gives all", style="dim")


def _text(row: np.ndarray, *, most: int) -> str:
    """Return the values of a row: all strings, but of more than `most` numbers only the first and last few."""
    if row.dtype == object:
        return " ".join(map(harmless, _decoded(row).flat))
    text = np.array2string(
        row.reshape(-1),
        formatter={"float_kind": lambda value: f"{value:.4g}"},
        threshold=most,
        edgeitems=5,
        max_line_width=_UNBOUNDED,
    )
    return text.strip("[]")


# Values on the command line, as arrays ------------------------------------------------------------------------------

_encoded = np.frompyfunc(str.encode, 1, 1)  # numpy's own strings would drop zeros at the end


@dataclass(frozen=True, slots=True)
class Value:
    array: np.ndarray
    maybe_float: bool = False  # whether these are whole numbers from JSON, which may be meant as float32

    def as_float(self) -> Value:
        return Value(self.array.astype(np.float32))


def read_value(name: str, text: str, *, rows: int | None = None) -> Value:
    """Read the value of input `name` from JSON, @FILE.npy or @FILE.npz:KEY. Raises SettingsError."""
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
    with Path(file).open("rb") as opened:  # numpy.load does not close a file that it cannot read
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
    """Convert a number in JSON. Raises OverflowError if it is too large for a float."""
    if math.isinf(number := float(text)):
        raise OverflowError(text)
    return number


def _exact(elements: np.ndarray, dtype: npt.DTypeLike, expected: str) -> np.ndarray:
    """Return the numbers in this dtype. Raises ValueError for the first finite number beyond its range."""
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
    return ValueError(f"expected {expected}, found {_start(str(found))}; give other dtypes as @FILE.npy")


def _start(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
