"""python -m inferencer: serves predictions from whatever is the newest published version."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from inferencer.stop import Stop


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 after a drain, 2 for settings that cannot be used."""
    stop = Stop()
    stop.listen()  # before the imports, which take time
    from inferencer import program
    from inferencer.settings import parse
    from paramsync.errors import ParamsyncError
    from paramsync.terminal import line

    try:
        program.run(parse(sys.argv[1:] if arguments is None else arguments), stop=stop)
    except ParamsyncError as error:
        if sys.stderr is not None:  # it was closed before the program began
            sys.stderr.write(f"inferencer: {line(str(error))}\n")
        return 2
    return 0


if __name__ == "__main__":
    code = main()
    if sys.stderr is not None:
        sys.stderr.flush()
    os._exit(code)  # all is over; but the interpreter would wait for a computation that never ends
