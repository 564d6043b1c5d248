"""The options of the server and of its models: one table for the command line and the file of models.

Flags that are not given are absent from the result, so that the file's values take effect.
"""

from __future__ import annotations

import argparse
import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramsync.program.flags import TOKEN_FILE_HELP, Parser, seconds, whole
from paramsync.program.process import LOG_FORMATS
from paramsync.rpc.addresses import CONTROL_PORT, HOST, PREDICTIONS_PORT, REST_PORT, read_port

from . import readers

MOST_WORKERS = 64
read_poll = seconds(below=86400)
read_rows = whole(1, 1_000_000)
_MEGABYTES = whole(1, 2047)  # gRPC counts bytes in 32 bits


def _megabytes(text: str) -> int:
    """Read a number of megabytes, and return the number of bytes."""
    return _MEGABYTES(text) << 20


class Kind(enum.Enum):
    """The type of an option's value in the file. TEXT, WHOLE and NUMBER flags take one value."""

    TEXT = "text"
    WHOLE = "a whole number"
    NUMBER = "a number"
    TEXTS = "a list of texts"
    """The flag may be repeated. If the option has `read_in_file`, the flag takes one list with commas instead."""
    SWITCH = "true or false"
    """The flag takes no value."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the server or of a model."""

    flag: str
    read: Callable[[str], Any]
    metavar: str
    help: str
    kind: Kind = Kind.TEXT
    names: tuple[str, str] | None = None
    """The field of Settings or ModelSettings, and the key in the file, if these differ from the flag's name."""
    read_in_file: Callable[[str], Any] | None = None
    """Reads a text of the file, if the file's form differs from the flag's."""

    @property
    def field(self) -> str:
        return self.names[0] if self.names else self._name

    @property
    def key(self) -> str:
        return self.names[1] if self.names else self._name

    @property
    def _name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


# fmt: off
_TENSORS = "names of tensors, for stores that TensorFlow's Saver writes"
OF_MODELS = (
    Option("--inputs", readers.tensors, "x:0,...", _TENSORS, Kind.TEXTS, read_in_file=readers.tensor),
    Option("--outputs", readers.tensors, "y:0,...", _TENSORS, Kind.TEXTS, read_in_file=readers.tensor),
    Option("--graph", readers.path, "PATH",
        "a graph file or the directory of a SavedModel, for checkpoints that come without a graph"),
    Option("--verify", readers.one_of("auto", "checksums"), "auto|checksums",
        "checksums: before a version serves, check all its bytes, and that its values are finite unless the publisher"
        " checked them; auto (the default): the same, but skip files that our publisher left unchanged in this"
        " machine's memory, and files that were verified for the serving version; checkpoints that TensorFlow wrote are"
        " always checked in full"),
    Option("--serve-damaged", str, "",
        "if the files of the serving version are damaged and no other version can serve, go on answering from the"
        " damaged version; without this flag requests fail and the error says why", Kind.SWITCH),
    Option("--resident", whole(1, 1000), "N",
        "versions kept in memory, including the serving version; a rollback to such a version is immediate"
        " (default: 2)",
        Kind.WHOLE),
    Option("--allow-op", readers.op, "NAME",
        "allow this op in graphs although it does more than compute, such as ReadFile; may be repeated",
        Kind.TEXTS, names=("allowed", "allow_op")),
    Option("--trust", readers.path, "KEYFILE",
        "serve only versions that one of the public keys in this file signed; may be repeated", Kind.TEXTS),
)
TRAINER = Option("--trainer", readers.trainer, "[MODEL=]HOST:PORT",
    "the trainer that publishes first on `paramsync sync --fresh`, and tells when a version is in the bucket of the"
    " model; may be repeated, once for each MODEL",
    Kind.TEXTS, names=("trainers", "trainer"))
"""An option of the command line only. In the file each model has its own `trainer`."""

OF_SERVER = (
    Option("--host", readers.host, "ADDRESS", f"address to listen on (default: {HOST})"),
    Option("--port", read_port, "N",
        f"predictions, by gRPC (default: {PREDICTIONS_PORT}; 0: any free)", Kind.WHOLE),
    Option("--rest-port", read_port, "N",
        f"predictions by HTTP, health and metrics (default: {REST_PORT}; 0: any free)", Kind.WHOLE),
    Option("--control-port", read_port, "N",
        f"status, sync and pins (default: {CONTROL_PORT}; 0: any free)", Kind.WHOLE),
    Option("--poll-seconds", read_poll, "S",
        "seconds between two looks for new versions, if the file system does not report them (default: 5)",
        Kind.NUMBER),
    Option("--state", readers.path, "DIR",
        "keep pins and labels in this folder (default: paramsync/CONTROL_PORT in $XDG_STATE_HOME or ~/.local/state)"),
    Option("--cache", readers.path, "DIR",
        "keep the local copies of stores in buckets in this folder, of this server alone (default: in memory)"),
    Option("--reload-root", readers.path, "DIR",
        "clients may add models (HandleReloadConfigRequest) whose stores are below this folder; may be repeated"
        " (default: any folder if --host is a loopback address, else none)",
        Kind.TEXTS, names=("reload_roots", "reload_roots")),
    Option("--allow-host", readers.host, "NAME",
        "accept HTTP requests with this Host header, such as a proxy's name, if --host is a loopback address and no"
        " token is configured; may be repeated (default: only localhost and loopback addresses)",
        Kind.TEXTS, names=("allowed_hosts", "allow_hosts")),
    Option("--token-file", readers.path, "FILE", TOKEN_FILE_HELP),
    Option("--auth-reads", str, "",
        "require a token for calls that only read, too, predictions included; health checks need none", Kind.SWITCH),
    Option("--tls-cert", readers.path, "FILE",
        "the server's certificate, followed by the certificates of the authorities that signed it"),
    Option("--tls-key", readers.path, "FILE",
        "the key of the server's certificate; with --tls-cert and --tls-key every port speaks TLS"),
    Option("--tls-client-ca", readers.path, "FILE",
        "the authority that signs client certificates: every gRPC client needs one; an HTTP client that changes"
        " something needs one, or a token"),
    Option("--trainer-tls-ca", readers.path, "FILE",
        "the authority that signs the certificates of trainers and peers; if given, the inferencer calls them by TLS"),
    Option("--peers", readers.targets, "TARGET,...",
        "the control ports of all servers of the fleet, for the page: HOST:PORT, or dns:///NAME:PORT for every address"
        " of the name",
        Kind.TEXTS, read_in_file=readers.target),
    Option("--workers", whole(1, MOST_WORKERS), "N",
        "worker processes, in addition to the supervisor (default: one for each processor that it may use)",
        Kind.WHOLE),
    Option("--queue", whole(1, 1_000_000), "N",
        "predictions that may be pending in each worker; a worker refuses more at once (default: 1024)",
        Kind.WHOLE),
    Option("--batch-rows", read_rows, "N",
        "the most rows in a batch of waiting requests; 1: no batches (default: 256)", Kind.WHOLE),
    Option("--max-message-mb", _megabytes, "N",
        "the largest request or answer (default: 64)", Kind.WHOLE, names=("message_bytes", "max_message_mb")),
    Option("--grpc-server", readers.one_of("own", "grpcio"), "own|grpcio",
        "the gRPC server for predictions: own, or grpcio's, which is slower and enforces fewer limits (default: own)"),
    Option("--log-format", readers.one_of(*LOG_FORMATS), "|".join(LOG_FORMATS),
        "json: one JSON object a line, for programs (default: text)"),
)
# fmt: on

_EXAMPLES = """\
examples:
  paramsync serve --model digits=/dev/shm/digits
  paramsync serve --model digits=/dev/shm/digits --trainer 127.0.0.1:8503
  paramsync serve --model a=/stores/a --model b=/stores/b --resident 3
  paramsync serve --model a=/a --model b=/b --trainer b=other-host:8503
  paramsync serve --model mlp=/checkpoints --inputs x:0 --outputs y:0
  paramsync serve --model digits=s3://bucket/models/digits
  paramsync serve --config models.toml --port 9000
"""


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="paramsync serve",
        description="Serves predictions from the newest published version.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    models = parser.add_argument_group("what is served")
    models.add_argument(
        "--model",
        action="append",
        type=_model,
        metavar="NAME=STORE",
        help="a model and its store: a directory, or an address such as s3://bucket/digits, or several addresses"
        " separated by commas, of which the first that answers is followed; may be repeated",
    )
    models.add_argument(
        "--config",
        type=Path,
        metavar="FILE.toml",
        help="read models, joined models included, and all other settings from this file, instead of --model",
    )
    server = parser.add_argument_group("how it is served")
    for group, options in ((models, (*OF_MODELS, TRAINER)), (server, OF_SERVER)):
        for option in options:
            _add(group, option)
    return parser


def _add(group: Any, option: Option) -> None:
    if option.kind is Kind.SWITCH:
        group.add_argument(option.flag, dest=option.field, action="store_true", help=option.help)
        return
    repeated = option.kind is Kind.TEXTS and option.read_in_file is None
    action = "append" if repeated else "store"
    group.add_argument(
        option.flag, dest=option.field, action=action, type=option.read, metavar=option.metavar, help=option.help
    )


def _model(text: str) -> tuple[str, Path | str]:
    name, _, store = text.partition("=")
    try:
        return readers.name(name), readers.store(store)
    except argparse.ArgumentTypeError as error:
        problem = f"expected NAME=STORE, such as digits=/var/lib/paramsync/digits, found {text!r}: {error}"
        raise argparse.ArgumentTypeError(problem) from None
