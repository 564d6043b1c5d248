"""TensorFlow Serving's files: protocol buffers as text, read whole or refused with the place that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from paramsync.errors import SettingsError

_LIMIT = 4 << 20  # bytes; a larger one is another file

M = TypeVar("M", bound=Message)


def read(path: Path, kind: type[M], option: str) -> M:
    """Raises SettingsError, which begins with the option that named the file."""
    try:
        with path.open("rb") as file:
            content = file.read(_LIMIT + 1)
    except OSError as error:
        raise SettingsError(f"{option} {path}: cannot be read: {error.strerror}") from error
    if len(content) > _LIMIT:
        raise SettingsError(f"{option} {path}: expected a file of at most {_LIMIT} bytes, found a larger one")
    name = f"tensorflow.serving.{kind.DESCRIPTOR.name}"
    try:
        return text_format.Parse(content.decode(), kind())
    except (text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{option} {path}: Error parsing text-format {name}: {error}") from error
