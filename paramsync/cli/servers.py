"""The servers that a command asks: whom the options or PARAMSYNC_SERVER name, all asked at the same time."""

from __future__ import annotations

import contextlib
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from paramsync.cli.arguments import INFERENCER, TRAINER
from paramsync.cli.credentials import credentials
from paramsync.cli.formatting import plain
from paramsync.cli.settings import SERVER, servers
from paramsync.errors import NotReachableError, ParamsyncError, SettingsError
from paramsync.rpc.addresses import check_address
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb

_Target = TypeVar("_Target")
_Answer = TypeVar("_Answer")


def addresses(arguments: Namespace) -> list[str]:
    """Of control ports, each once: those given by --server, else by PARAMSYNC_SERVER, else the default.

    Raises SettingsError for what is no HOST:PORT.
    """
    if arguments.servers:
        return _read(arguments.servers) or [check_address("")]
    try:
        return _read([servers()]) or [INFERENCER]
    except SettingsError as error:
        raise SettingsError(f"{SERVER}: {error}") from error


def _read(texts: Sequence[str]) -> list[str]:
    named = (part.strip() for text in texts for part in text.split(","))
    return list(dict.fromkeys(check_address(address) for address in named if address))


def trainer(arguments: Namespace, servers: Sequence[str]) -> tuple[str, bool]:
    """The address of the trainer's control port, and whether somebody is expected there: where it is named, or all is
    asked at its default address. A host that only serves has no trainer."""
    return arguments.trainer or TRAINER, arguments.trainer is not None or list(servers) == [INFERENCER]


@contextlib.contextmanager
def connected(arguments: Namespace) -> Iterator[list[Inferencer]]:
    """A client of each; leaving ends whatever they still wait for."""
    with contextlib.ExitStack() as stack:
        shown = credentials(arguments)
        yield [stack.enter_context(Inferencer(address, shown)) for address in addresses(arguments)]


def ask_all(targets: Sequence[_Target], ask: Callable[[_Target], _Answer]) -> list[_Answer | ParamsyncError]:
    """What each answers, or why it does not, in the order of the targets. Takes as long as the slowest of them.

    Ctrl-C is not held up: the threads that ask end with the clients they ask.
    """
    answers: dict[int, _Answer | ParamsyncError] = {}

    def run(number: int) -> None:
        try:
            answers[number] = ask(targets[number])
        except ParamsyncError as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(targets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[number] for number in range(len(targets))]


def short(error: ParamsyncError, server: str) -> str:
    """The reason without what stands beside it already: which server it is."""
    if isinstance(error, NotReachableError):
        return f"not reachable ({error.why})"
    return str(error).replace(f"{Inferencer.program} at {server} ", "")


def report(
    address: str, publisher: pb.PublisherStatus | ParamsyncError, servers: Sequence[str], told: Sequence[Any]
) -> dict[str, Any]:
    """What a trainer and inferencers said of themselves, as JSON values."""
    missing = isinstance(publisher, ParamsyncError)
    return {
        "trainer": {
            "address": address,
            "error": str(publisher) if missing else None,
            "status": None if isinstance(publisher, ParamsyncError) else plain(publisher),
        },
        "servers": [_server_report(server, answer) for server, answer in zip(servers, told, strict=True)],
    }


def _server_report(address: str, answer: pb.GetStatusResponse | ParamsyncError) -> dict[str, Any]:
    missing = isinstance(answer, ParamsyncError)
    return {
        "address": address,
        "error": str(answer) if missing else None,
        "models": None if isinstance(answer, ParamsyncError) else [plain(model) for model in answer.models],
        "workers": None if isinstance(answer, ParamsyncError) else [plain(worker) for worker in answer.workers],
    }
