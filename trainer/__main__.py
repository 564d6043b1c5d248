"""The training program: `python -m trainer --store DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from paramsync.program.process import Stop


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program, and return its exit code."""
    stop = Stop()
    stop.listen()  # before the imports, because they take long and a signal may come meanwhile
    from paramsync.errors import ParamsyncError

    from . import settings

    settings.set_environment()
    try:
        asked = settings.parse(sys.argv[1:] if arguments is None else arguments)
        from . import program  # imported late, because it would make --help several times slower

        program.run(asked, stop=stop)
    except ParamsyncError as error:
        if sys.stderr is not None:  # None if it was closed when the program started
            sys.stderr.write(f"paramsync train: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
