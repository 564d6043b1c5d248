"""Readers of single values of the command line and of files. Each raises ArgumentTypeError with the expected form."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from paramsync.errors import SettingsError
from paramsync.remote.bucket import check_address
from paramsync.remote.in_order import addresses as addresses_in_order
from paramsync.rpc import addresses

_NAME = 200  # most bytes of a name, because it becomes part of a file name, which may have 255


def content(option: str, path: Path, limit: int) -> bytes:
    """Read a file that an option names. Raises SettingsError."""
    try:
        with path.open("rb") as file:
            whole = file.read(limit + 1)
    except OSError as error:
        raise SettingsError(f"{option} {path}: cannot be read: {error.strerror}") from error
    if len(whole) > limit:
        raise SettingsError(f"{option} {path}: expected a file of at most {limit} bytes, found a larger one")
    return whole


def name(text: str) -> str:
    """Read the name of a model or label. It must be usable in a URL, a file name and a metric."""
    if not re.fullmatch(r"[\w.-]+", text):
        raise ArgumentTypeError(f"expected a name of letters, digits, '_', '.' and '-', found {text!r}")
    if (size := len(quote(text, safe=""))) > _NAME:
        found = f"{size} in {text[:20]!r}..."
        raise ArgumentTypeError(f"expected a name of at most {_NAME} bytes, as a URL has them, found {found}")
    return text


def path(text: str) -> Path:
    if not text or "\0" in text:
        raise ArgumentTypeError(f"expected a path, found {text!r}")
    return Path(text)


def store(text: str) -> Path | str:
    """Read the path of a store, or the address of a store in a bucket."""
    if "://" not in text:
        return path(text)
    try:
        for address in addresses_in_order(text):
            check_address(address)
    except SettingsError as error:
        raise ArgumentTypeError(str(error)) from error
    return text


def host(text: str) -> str:
    if not text or re.search(r"\s", text):
        raise ArgumentTypeError(f"expected an address to listen on, such as 127.0.0.1, found {text!r}")
    return text


def tensors(text: str) -> tuple[str, ...]:
    """Read names of tensors, separated by commas."""
    return tuple(tensor(part.strip(), instead_of=text) for part in text.split(","))


def tensor(text: str, *, instead_of: str | None = None) -> str:
    if not text:
        found = text if instead_of is None else instead_of
        raise ArgumentTypeError(f"expected names of tensors, such as x:0,y:0, found {found!r}")
    return text


def op(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w>]*", text):
        raise ArgumentTypeError(f"expected the name of one op, such as ReadFile, found {text!r}")
    return text


def one_of(*words: str) -> Callable[[str], str]:
    """Return a reader that accepts only these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ArgumentTypeError(f"expected {' or '.join(words)}, found {text!r}")
        return text

    return read


def called(text: str) -> str:
    """Read the address of another program, HOST:PORT."""
    try:
        return addresses.check_address(text)
    except SettingsError as error:
        raise ArgumentTypeError(str(error)) from error


def target(text: str) -> str:
    """Read HOST:PORT, or dns:///NAME:PORT for every address of the name."""
    try:
        return addresses.check_target(text)
    except SettingsError as error:
        raise ArgumentTypeError(str(error)) from error


def targets(text: str) -> tuple[str, ...]:
    """Read targets, separated by commas."""
    return tuple(target(part.strip()) for part in text.split(","))


def trainer(text: str) -> tuple[str | None, str]:
    """Read MODEL=ADDRESS or ADDRESS. Returns None as the model of a trainer for all models without their own."""
    of, equals, address = text.rpartition("=")
    return (name(of) if equals else None), called(address)
