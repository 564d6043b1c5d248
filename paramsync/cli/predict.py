"""`paramsync predict`: asks a model and says which version answered."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Mapping

import numpy as np
from rich.console import Console
from rich.table import Table

from paramsync.cli.credentials import credentials
from paramsync.cli.formatting import console, duration, to_json
from paramsync.cli.values import Value, read
from paramsync.errors import RequestError, SettingsError
from paramsync.host.files import harmless
from paramsync.rpc.client import Prediction, Predictor

_ROWS = 12  # how many rows of an answer a terminal shows
_VALUES = 12  # and how many values of a row
_UNBOUNDED = 1 << 30  # columns
_CLASSES = 1000  # a wider row is hardly one of scores, so its greatest element says nothing

_decoded = np.frompyfunc(lambda text: text.decode(errors="replace"), 1, 1)


def run(arguments: Namespace) -> bool:
    values: dict[str, Value] = {}
    for name, text in arguments.inputs:
        if name in values:
            raise SettingsError(f"input {name!r}: expected it once, found it again")
        values[name] = read(name, text, rows=arguments.rows)
    started = time.monotonic()
    with Predictor(arguments.server, credentials(arguments)) as predictor:
        prediction = _ask(predictor, arguments.model, values)
    if arguments.json:
        outputs = {name: _listed(array) for name, array in prediction.outputs.items()}
        sys.stdout.write(to_json({"model": arguments.model, "version": prediction.version, "outputs": outputs}))
        return True
    took = duration(time.monotonic() - started)
    screen = console()
    if not screen.is_terminal:  # what a file or a program gets is whole
        screen.width = _UNBOUNDED
    screen.print(f"{arguments.model}: version {prediction.version} answered in {took}", style="bold", soft_wrap=True)
    for name, array in sorted(prediction.outputs.items()):
        _show(screen, name, array)
    return True


def _ask(predictor: Predictor, model: str, values: Mapping[str, Value]) -> Prediction:
    """JSON does not say whether 1 is whole by chance: what the server refuses naming float32 is sent as float32."""
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
    if array.dtype == object:  # one by one: an array of bytes would drop what ends in zeros
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
        row = rows[number : number + 1]  # an array also where the elements of one are bytes
        table.add_row(
            str(number),
            *([str(int(row.argmax()))] if scores else []),
            _text(row, most=_VALUES if watched else row.size),
        )
    screen.print(table)
    if count < len(rows):
        screen.print(f"{len(rows) - count} more rows; --json gives all", style="dim")


def _text(row: np.ndarray, *, most: int) -> str:
    """Its values, the first and last few of them where there are more than `most`."""
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
