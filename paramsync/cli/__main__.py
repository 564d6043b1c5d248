"""The `paramsync` command: from arguments to one of the commands, and from errors to one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from paramsync.cli.arguments import parser
from paramsync.errors import ParamsyncError, SettingsError

DONE, NOT_DONE, WRONG_ARGUMENTS, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Wrong arguments end the program with argparse's usage line and exit code 2."""
    arguments = parser().parse_args(argv)
    try:
        return _run(arguments)
    except SettingsError as error:
        return _refuse(arguments, error, WRONG_ARGUMENTS)
    except ParamsyncError as error:
        return _refuse(arguments, error, NOT_DONE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as `head` does; Python must not complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_DONE


def _run(arguments: Namespace) -> int:
    # Imported here because each command's imports cost more than the whole of --help.
    module = importlib.import_module(f"paramsync.cli.{arguments.module}")
    done: bool = module.run(arguments)
    sys.stdout.flush()
    return DONE if done else NOT_DONE


def _refuse(arguments: Namespace, error: ParamsyncError, code: int) -> int:
    sys.stderr.write(f"paramsync {arguments.command}: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
