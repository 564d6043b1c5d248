"""Parses arguments of the programs. A wrong argument raises SettingsError, whose text is one line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import NoReturn

from paramsync.errors import SettingsError

TOKEN_FILE_HELP = (
    "tokens, one a line as TOKEN or NAME:TOKEN; a call that changes something needs one; without tokens such calls are"
    " accepted on loopback addresses only (default: PARAMSYNC_TOKEN_FILE, or the tokens in PARAMSYNC_TOKEN)"
)


def check_text(arguments: Iterable[str]) -> None:
    """Raise SettingsError for an argument that is not UTF-8, because messages could not contain it."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise SettingsError(f"expected arguments in UTF-8, found {argument!r}") from error


class Parser(argparse.ArgumentParser):
    """Raises SettingsError for wrong arguments. By default argparse prints a message and exits."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def seconds(*, below: float) -> Callable[[str], float]:
    """Return a type for argparse: seconds above 0 and below a limit."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < below:
            limit = f" and below {below:g}" if value >= below else ""
            raise argparse.ArgumentTypeError(f"expected seconds above 0{limit}, found {text!r}")
        return value

    return read


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a type for argparse: a whole number from `least` to `most`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, found {text!r}")
        if value > most:
            raise argparse.ArgumentTypeError(f"expected a whole number of at most {most}, found {text!r}")
        return value

    return read
