"""Reads the TOML file of models and server options. Errors name the place of the mistake."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from paramsync.errors import SettingsError
from paramsync.following.pins_file import MOST_LABELS
from paramsync.version import NUMBERS

from . import flags, readers

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LIMIT = 1 << 20  # bytes; a larger file cannot be a file of models
_SHOWN = 60  # most characters of a wrong value in an error

Read: TypeAlias = Callable[[Any], Any]
"""A function that reads a TOML value. It raises ArgumentTypeError, which says what was expected and found."""


def read(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read the file. Returns the fields of Settings, and for each model the fields of its settings.

    Paths in the file are relative to the file's folder. Raises SettingsError.
    """
    content = _content(path)
    where = f"--config {path}:"
    for table in content.keys() - {"server", "models"}:
        raise SettingsError(f"{where} expected [server] and [models.NAME], found {table!r}")
    server = _values(content.get("server", {}), _known(flags.OF_SERVER, path.parent), f"{where} [server]")
    tables = content.get("models", {})
    if not (isinstance(tables, dict) and tables):
        raise SettingsError(f"{where} expected one [models.NAME] or more, found {_shown(tables) if tables else 'none'}")
    models = {name: _model(name, table, path.parent, f"{where} [models.{name}]") for name, table in tables.items()}
    return server, models


def _content(path: Path) -> dict[str, Any]:
    content = readers.content("--config", path, _LIMIT)
    try:
        return tomllib.loads(content.decode())
    except RecursionError as error:
        raise SettingsError(f"--config {path}: expected TOML, found lists in lists without end") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"--config {path}: expected TOML in UTF-8, found a mistake: {error}") from error
    except ValueError as error:  # Python's message is about a setting of Python
        raise SettingsError(f"--config {path}: expected TOML, found a number of too many digits") from error


def _model(name: str, table: Any, base: Path, where: str) -> dict[str, Any]:
    try:
        readers.name(name)
    except ArgumentTypeError as error:
        raise SettingsError(f"{where} {error}") from error
    if not isinstance(table, dict):
        raise SettingsError(f"{where} expected a table, found {_shown(table)}")
    if ("connect" in table) == ("store" in table):
        found = "both" if "store" in table else "neither"
        raise SettingsError(f"{where} expected store, or connect = [FIRST, SECOND], found {found}")
    if "store" in table:
        return _values(table, _stored(base), where)
    values = _values(table, _CONNECTED, where)
    if "inputs" not in values:
        raise SettingsError(
            f'{where} inputs: expected a table, such as {{ features = "embedding" }}, from inputs of the second to'
            " outputs of the first, found none"
        )
    values["first"], values["second"] = values.pop("connect")
    return values


def _values(table: Any, known: Mapping[str, tuple[str, Read]], where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise SettingsError(f"{where} expected a table, found {_shown(table)}")
    values = {}
    for key, value in table.items():
        if key not in known:
            raise SettingsError(f"{where} {key}: expected one of {', '.join(known)}, found {key!r}")
        name, reading = known[key]
        try:
            values[name] = reading(value)
        except ArgumentTypeError as error:
            raise SettingsError(f"{where} {key}: {error}") from error
    return values


# Tables from a key in the file to the field of our settings and the reader of the value ----------------------------


def _known(options: Iterable[flags.Option], base: Path) -> dict[str, tuple[str, Read]]:
    return {option.key: (option.field, _reader(option, base)) for option in options}


def _reader(option: flags.Option, base: Path) -> Read:
    """Return the reader of an option's value. Relative paths start from `base`."""
    read = option.read_in_file or option.read
    if read is readers.path:
        read = partial(_path, base)
    match option.kind:
        case flags.Kind.SWITCH:
            return _either
        case flags.Kind.TEXTS:
            return partial(_texts, read)
        case flags.Kind.WHOLE:
            return lambda value: read(str(_expect(value, _is_whole(value), option.kind.value)))
        case flags.Kind.NUMBER:
            return lambda value: read(str(_expect(value, type(value) in (int, float), option.kind.value)))
    return partial(_text, read)


def _stored(base: Path) -> dict[str, tuple[str, Read]]:
    return {
        "store": ("store", partial(_text, lambda text: text if "://" in text else _path(base, text))),
        **_known(flags.OF_MODELS, base),
        "trainer": ("trainer", partial(_text, readers.called)),
        "labels": ("labels", _labels),
        "batching": ("batching", _either),
    }


def _text(read: Callable[[str], Any], value: Any) -> Any:
    return read(_expect(value, isinstance(value, str), "text"))


def _texts(read: Callable[[str], Any], value: Any) -> tuple[Any, ...]:
    one_or_more = isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)
    return tuple(read(text) for text in _expect(value, one_or_more, "a list of texts"))


def _path(base: Path, text: str) -> Path:
    try:
        return base / readers.path(text).expanduser()
    except RuntimeError as error:
        raise ArgumentTypeError(f"expected a path, found {_shown(text)} of a user who has no home here") from error


def _either(value: Any) -> Any:
    return _expect(value, isinstance(value, bool), "true or false")


def _labels(value: Any) -> dict[str, int]:
    table = _expect(value, isinstance(value, dict), "a table of versions by label, such as { stable = 420 }")
    if len(table) > MOST_LABELS:
        raise ArgumentTypeError(f"expected at most {MOST_LABELS} labels, found {len(table)}")
    for label, number in table.items():
        readers.name(label)
        if not (_is_whole(number) and 0 <= number < NUMBERS):
            raise ArgumentTypeError(f"expected the number of a version for {label}, found {_shown(number)}")
    return dict(table)


def _connect(value: Any) -> tuple[str, str]:
    two = isinstance(value, list) and len(value) == 2 and all(isinstance(model, str) for model in value)
    first, second = _expect(value, two and value[0] != value[1], 'two models, such as ["encoder", "head"]')
    return first, second


def _joints(value: Any) -> dict[str, str]:
    good = isinstance(value, dict) and bool(value) and all(isinstance(output, str) for output in value.values())
    return dict(_expect(value, good, 'a table from inputs to outputs, such as { features = "embedding" }'))


_CONNECTED: dict[str, tuple[str, Read]] = {
    "connect": ("connect", _connect),
    "inputs": ("inputs", _joints),
    "outputs": ("outputs", partial(_texts, readers.tensor)),
}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63  # the limit of TOML


def _expect(value: Any, good: bool, what: str) -> Any:
    if not good:
        raise ArgumentTypeError(f"expected {what}, found {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:
        text = "a number of too many digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
