"""The serving program's first and last steps: signals, settings, exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from paramsync.program.process import Stop

_SETTINGS = f"{__package__.rpartition('.')[0]}.settings.settings"


def main(arguments: Sequence[str] | None = None, *, parsing: str = _SETTINGS) -> int:
    """Serve. The module `parsing` reads the settings. Exit code 0 after a drain, 2 for wrong settings."""
    stop = Stop()
    stop.listen()  # before the imports, which take time
    import importlib

    from paramsync.errors import ParamsyncError
    from paramsync.host.files import line

    try:
        settings = importlib.import_module(parsing).parse(sys.argv[1:] if arguments is None else arguments)
        from . import start  # not before: importing it takes several times as long as --help

        start.run(settings, stop=stop)
    except ParamsyncError as error:
        if sys.stderr is not None:  # None if it was closed before the program began
            sys.stderr.write(f"paramsync serve: {line(str(error))}\n")
        return 2
    return 0


def end(code: int) -> NoReturn:
    """End the process at once: the interpreter would wait for a computation that never ends."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # its terminal was closed
            sys.stderr.flush()
    os._exit(code)
