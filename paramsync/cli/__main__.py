"""The `paramsync` command: runs one command, and turns errors into one line and an exit code."""

from __future__ import annotations

from paramsync.cli.process import INTERRUPTED, complain, give_up_output, importing, leave, open_closed_streams

with importing():
    import importlib
    import sys
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import NoReturn

    from paramsync.cli.arguments import parse
    from paramsync.cli.settings import silence_grpc
    from paramsync.errors import ParamsyncError, SettingsError
    from paramsync.program.flags import check_text

DONE, NOT_DONE, WRONG_ARGUMENTS = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code."""
    try:
        open_closed_streams()
        return _answer(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left, for example `head`
        give_up_output()
        return NOT_DONE
    except OSError as error:
        give_up_output()
        complain(f"paramsync: {error.filename or 'standard output'}: {error.strerror}")
        return NOT_DONE


def _answer(argv: Sequence[str]) -> int:
    command, arguments = "paramsync", None
    try:
        check_text(argv)
        arguments = parse(argv)
        command = f"paramsync {arguments.command}"
        return _run(arguments)
    except SettingsError as error:
        complain(f"{command}: {error}")
        return WRONG_ARGUMENTS
    except ParamsyncError as error:
        if getattr(arguments, "json", False):
            _say_as_json(error)
        complain(f"{command}: {error}")
        return NOT_DONE


def _say_as_json(error: ParamsyncError) -> None:
    from paramsync.cli.formatting import to_json

    sys.stdout.write(to_json({"error": str(error)}))
    sys.stdout.flush()


def _run(arguments: Namespace) -> int:
    if arguments.module != "programs":  # the programs set gRPC's logging themselves
        silence_grpc()
    with importing():  # here, because the imports of a command take longer than all of --help
        module = importlib.import_module(f"paramsync.cli.{arguments.module}")
    done: bool | int = module.run(arguments)
    sys.stdout.flush()
    if isinstance(done, bool):
        return DONE if done else NOT_DONE
    return int(done)


def command() -> NoReturn:
    """The entry point of the installed script."""
    leave(main())


if __name__ == "__main__":
    command()
