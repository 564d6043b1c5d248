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
    """Megabytes, as bytes."""
    return _MEGABYTES(text) << 20


class Kind(enum.Enum):
    """The type of a value in the file; it also decides whether the flag may be repeated."""

    TEXT = "text"
    WHOLE = "a whole number"
    NUMBER = "a number"
    TEXTS = "a list of texts"
    """A flag that may be repeated."""
    SWITCH = "true or false"


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
_TENSORS = "tensors, for stores that TensorFlow's Saver writes"
OF_MODELS = (
    Option("--inputs", readers.tensors, "x:0,...", _TENSORS, Kind.TEXTS, read_in_file=readers.tensor),
    Option("--outputs", readers.tensors, "y:0,...", _TENSORS, Kind.TEXTS, read_in_file=readers.tensor),
    Option("--graph", readers.path, "PATH",
        "a graph file or the directory of a SavedModel, for checkpoints that come without a graph"),
    Option("--verify", readers.one_of("auto", "checksums"), "auto|checksums",
        "what is checked of a version before it serves: every byte, and every value at which the publisher did not look"
        " (checksums); or that as well, unless its files are in this machine's memory as our publisher left them, or"
        " were verified for the version that serves (auto, the default); what TensorFlow itself wrote is always checked"
        " in full"),
    Option("--serve-damaged", str, "",
        "a version whose files were damaged after they were checked goes on answering where there is no other one;"
        " without it answers fail with the reason", Kind.SWITCH),
    Option("--resident", whole(1, 1000), "N",
        "versions that stay in memory, the serving one among them: going back to one of them is immediate (default: 2)",
        Kind.WHOLE),
    Option("--allow-op", readers.op, "NAME",
        "an op that a graph may use although it does more than compute, such as ReadFile; may be repeated",
        Kind.TEXTS, names=("allowed", "allow_op")),
    Option("--trust", readers.path, "KEYFILE",
        "serve nothing but versions that one of the public keys in this file signed; may be repeated", Kind.TEXTS),
)
TRAINER = Option("--trainer", readers.trainer, "[MODEL=]HOST:PORT",
    "the trainer that a fresh sync asks to publish first; repeated where models have trainers of their own",
    Kind.TEXTS, names=("trainers", "trainer"))
"""In the file each model has a `trainer` of its own."""

OF_SERVER = (
    Option("--host", readers.host, "ADDRESS", f"address to listen on (default: {HOST})"),
    Option("--port", read_port, "N",
        f"predictions, by gRPC (default: {PREDICTIONS_PORT}; 0: any free)", Kind.WHOLE),
    Option("--rest-port", read_port, "N",
        f"predictions by HTTP, health and metrics (default: {REST_PORT}; 0: any free)", Kind.WHOLE),
    Option("--control-port", read_port, "N",
        f"status, sync and pins (default: {CONTROL_PORT}; 0: any free)", Kind.WHOLE),
    Option("--poll-seconds", read_poll, "S",
        "how often to look for new versions where the file system does not report them (default: 5)", Kind.NUMBER),
    Option("--state", readers.path, "DIR",
        "where pins and labels are remembered (default: paramsync/CONTROL_PORT in $XDG_STATE_HOME or ~/.local/state)"),
    Option("--reload-root", readers.path, "DIR",
        "callers may have models served (HandleReloadConfigRequest) whose stores are below this folder; may be repeated"
        " (default: any folder where --host is a loopback address, else none)",
        Kind.TEXTS, names=("reload_roots", "reload_roots")),
    Option("--allow-host", readers.host, "NAME",
        "a name that requests by HTTP may be for, such as a proxy's, where --host is a loopback address and no token is"
        " configured; may be repeated (default: localhost and loopback addresses alone)",
        Kind.TEXTS, names=("allowed_hosts", "allow_hosts")),
    Option("--token-file", readers.path, "FILE", TOKEN_FILE_HELP),
    Option("--auth-reads", str, "",
        "calls that read, predictions among them, need a token too; health does not", Kind.SWITCH),
    Option("--tls-cert", readers.path, "FILE", "the certificate of this server, and those it is signed by"),
    Option("--tls-key", readers.path, "FILE", "its key; with both every port speaks TLS"),
    Option("--tls-client-ca", readers.path, "FILE",
        "the authority that signs callers' certificates: every gRPC caller shows one; by HTTP a caller that changes"
        " something shows one, or a token"),
    Option("--trainer-tls-ca", readers.path, "FILE",
        "the authority that signs trainers' certificates; with it trainers are called by TLS"),
    Option("--workers", whole(1, MOST_WORKERS), "N",
        "processes that answer, beside the one that follows the stores (default: the processors it may use)",
        Kind.WHOLE),
    Option("--queue", whole(1, 1_000_000), "N",
        "predictions that may wait or be computed in each worker; more are refused at once (default: 1024)",
        Kind.WHOLE),
    Option("--batch-rows", read_rows, "N",
        "rows that go into one call when requests wait together; 1: each goes alone (default: 256)", Kind.WHOLE),
    Option("--max-message-mb", _megabytes, "N",
        "the largest request or answer (default: 64)", Kind.WHOLE, names=("message_bytes", "max_message_mb")),
    Option("--grpc-server", readers.one_of("own", "grpcio"), "own|grpcio",
        "what answers predictions by gRPC: our own server, or grpcio's, which is slower and bounds less"
        " (default: own)"),
    Option("--log-format", readers.one_of(*LOG_FORMATS), "|".join(LOG_FORMATS),
        "json: one object on each line, for programs (default: text)"),
)
# fmt: on

_EXAMPLES = """\
examples:
  paramsync serve --model digits=/dev/shm/digits
  paramsync serve --model digits=/dev/shm/digits --trainer 127.0.0.1:8503
  paramsync serve --model a=/stores/a --model b=/stores/b --resident 3
  paramsync serve --model a=/a --model b=/b --trainer b=other-host:8503
  paramsync serve --model mlp=/checkpoints --inputs x:0 --outputs y:0
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
        "--model", action="append", type=_model, metavar="NAME=STORE", help="a model and its store; may be repeated"
    )
    models.add_argument(
        "--config",
        type=Path,
        metavar="FILE.toml",
        help="models, connected ones among them, and everything else, from a file, instead of --model",
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


def _model(text: str) -> tuple[str, Path]:
    name, _, store = text.partition("=")
    try:
        return readers.name(name), readers.path(store)
    except argparse.ArgumentTypeError as error:
        problem = f"expected NAME=STORE, such as digits=/var/lib/paramsync/digits, found {text!r}: {error}"
        raise argparse.ArgumentTypeError(problem) from None
