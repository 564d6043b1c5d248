"""Reads TensorFlow Serving's configuration files, and applies the file of models each time it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message
from tensorflow_serving.config import model_server_config_pb2

from paramsync.errors import ParamsyncError, SettingsError
from paramsync.following.policy import Backoff

from ...settings import readers

_log = logging.getLogger("paramsync.inferencer")
_OPTION = "--model_config_file"
_LIMIT = 4 << 20  # bytes; a larger file cannot be a configuration
_UNTIL_FIRST = 1.0  # seconds between two tries until the first success: a base path may be mounted later

Apply = Callable[..., Coroutine[Any, Any, None]]
M = TypeVar("M", bound=Message)


def read(path: Path, kind: type[M], option: str) -> M:
    """Parse a file. Raises SettingsError with a text that begins with `option`."""
    content = readers.content(option, path, _LIMIT)
    name = f"tensorflow.serving.{kind.DESCRIPTOR.name}"
    try:
        return text_format.Parse(content.decode(), kind())
    except (text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{option} {path}: Error parsing text-format {name}: {error}") from error


class ConfigFile:
    """A file of models, applied at the start and after each change. Lives on one event loop."""

    def __init__(self, path: Path, apply: Apply) -> None:
        """`apply` takes a ModelServerConfig and `seconds`. See Configuring.apply for the errors."""
        self._path = path
        self._apply = apply
        self._applied: model_server_config_pb2.ModelServerConfig | None = None
        self._refused: model_server_config_pb2.ModelServerConfig | None = None
        self._back_off = Backoff()
        self._complaint = ""

    async def run_once(self, now: float) -> None:
        """Apply the file if it changed. A failure is logged once, and the models stay as they are.

        After a TimeoutError, which is logged, the configuration is in effect but for pins and labels of stores that do
        not answer yet. A failed configuration is tried again with a back-off, because each try may load versions.
        """
        config = None
        try:
            config = await asyncio.to_thread(read, self._path, model_server_config_pb2.ModelServerConfig, _OPTION)
            if config != self._refused:
                self._refused, self._back_off = None, Backoff()
            if config == self._applied or self._back_off.left(now):
                return
            await self._apply(config, seconds=None)
        except TimeoutError as error:
            _log.warning("%s %s: %s", _OPTION, self._path, error)
            self._applied, self._complaint = config, ""
            return
        except Exception as error:  # noqa: BLE001, an error must not end the checks for changes
            text = str(error) if isinstance(error, SettingsError) else f"{_OPTION} {self._path}: {error}"
            if text != self._complaint:
                foreseen = isinstance(error, ParamsyncError)
                _log.error("%s; what was served before goes on", text, exc_info=None if foreseen else error)
            self._complaint, self._refused = text, config
            self._back_off.failed(now)
            return
        if self._applied is not None:
            _log.info("%s %s: the change is applied", _OPTION, self._path)
        self._applied, self._complaint = config, ""

    async def follow(self, seconds: float | None) -> None:
        """Check for a change every `seconds` until cancelled. If `seconds` is None, check until the file is applied."""
        while seconds is not None or self._applied is None:
            await asyncio.sleep(_UNTIL_FIRST if seconds is None else seconds)
            await self.run_once(asyncio.get_running_loop().time())
