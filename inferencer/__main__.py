"""python -m inferencer: serves predictions from whatever is the newest published version."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from inferencer.program.stop import Stop


def main(arguments: Sequence[str] | None = None, *, parsing: str = "inferencer.settings.settings") -> int:
    """Exit code 0 after a drain, 2 for settings that cannot be used; the `parse` of that module reads them."""
    stop = Stop()
    stop.listen()  # before the imports, which take time
    import importlib

    from inferencer.program import start
    from paramsync.errors import ParamsyncError
    from paramsync.host.terminal import line

    try:
        settings = importlib.import_module(parsing).parse(sys.argv[1:] if arguments is None else arguments)
        start.run(settings, stop=stop)
    except ParamsyncError as error:
        if sys.stderr is not None:  # it was closed before the program began
            sys.stderr.write(f"inferencer: {line(str(error))}\n")
        return 2
    return 0


def end(code: int) -> NoReturn:
    """End the process: all is over; but the interpreter would wait for a computation that never ends."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # its terminal was closed
            sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
