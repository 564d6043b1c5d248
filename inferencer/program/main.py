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
    """Serve until stopped. Returns the exit code: 0 after a drain, 2 if the server cannot start.

    The module named `parsing` reads the settings.
    """
    stop = Stop()
    stop.listen()  # before the imports, because they take long and a signal may come meanwhile
    import importlib

    from paramsync.errors import ParamsyncError
    from paramsync.host.files import line

    try:
        settings = importlib.import_module(parsing).parse(sys.argv[1:] if arguments is None else arguments)
        from . import start  # imported late, because it would make --help several times slower

        start.run(settings, stop=stop)
    except ParamsyncError as error:
        if sys.stderr is not None:  # None if it was closed before the program began
            sys.stderr.write(f"paramsync serve: {line(str(error))}\n")
        return 2
    return 0


def end(code: int) -> NoReturn:
    """End the process at once. A normal exit would wait for threads, whose computations may never end."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # the terminal was closed
            sys.stderr.flush()
    os._exit(code)
