"""The command line. Flags that are not given are absent from its result, so that a file may give them."""

from __future__ import annotations

import argparse
from pathlib import Path

from paramsync.program.flags import TOKEN_FILE_HELP, Parser, seconds, whole
from paramsync.program.process import LOG_FORMATS
from paramsync.rpc.addresses import CONTROL_PORT, HOST, PREDICTIONS_PORT, REST_PORT, read_port

from . import readers

OF_MODELS = {
    "inputs": "--inputs",
    "outputs": "--outputs",
    "graph": "--graph",
    "verify": "--verify",
    "serve_damaged": "--serve-damaged",
    "resident": "--resident",
    "allowed": "--allow-op",
    "trust": "--trust",
    "trainers": "--trainer",
}
"""Flags for all models of the command line (`--trainer` may name one), by their fields of ModelSettings."""

VERIFICATIONS = ("auto", "checksums")
read_resident = whole(1, 1000)
read_poll = seconds(below=86400)
GRPC_SERVERS = ("own", "grpcio")
MOST_WORKERS = 64
read_workers = whole(1, MOST_WORKERS)
read_queue = whole(1, 1_000_000)
read_rows = whole(1, 1_000_000)

_MEGABYTES = whole(1, 2047)  # gRPC counts bytes in 32 bits
_EXAMPLES = """\
examples:
  paramsync serve --model digits=/dev/shm/digits
  paramsync serve --model digits=/dev/shm/digits --trainer 127.0.0.1:8503
  paramsync serve --model a=/stores/a --model b=/stores/b --resident 3
  paramsync serve --model a=/a --model b=/b --trainer b=other-host:8503
  paramsync serve --model mlp=/checkpoints --inputs x:0 --outputs y:0
  paramsync serve --config models.toml --port 9000
"""


def read_message(text: str) -> int:
    """Megabytes, as bytes."""
    return _MEGABYTES(text) << 20


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="paramsync serve",
        description="Serves predictions from the newest published version.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    _add_models(parser)
    _add_server(parser)
    return parser


def _add_models(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is served").add_argument
    add("--model", action="append", type=_model, metavar="NAME=STORE", help="a model and its store; may be repeated")
    add(
        "--config",
        type=Path,
        metavar="FILE.toml",
        help="models, connected ones among them, and everything else, from a file, instead of --model",
    )
    add("--inputs", type=readers.tensors, metavar="x:0,...", help="tensors, for stores that TensorFlow's Saver writes")
    add("--outputs", type=readers.tensors, metavar="y:0,...", help="tensors, for stores that TensorFlow's Saver writes")
    add(
        "--graph",
        type=readers.path,
        metavar="PATH",
        help="a graph file or the directory of a SavedModel, for checkpoints that come without a graph",
    )
    add(
        "--verify",
        choices=VERIFICATIONS,
        help="what is checked of a version before it serves: every byte, and every value at which the publisher did not"
        " look (checksums); or that as well, unless its files are in this machine's memory as our publisher left"
        " them, or were verified for the version that serves (auto, the default); what TensorFlow itself wrote is"
        " always checked in full",
    )
    add(
        "--serve-damaged",
        action="store_true",
        help="a version whose files were damaged after they were checked goes on answering where there is no other one;"
        " without it answers fail with the reason",
    )
    add(
        "--resident",
        type=read_resident,
        metavar="N",
        help="versions that stay in memory, the serving one among them: going back to one of them is immediate"
        " (default: 2)",
    )
    add(
        "--allow-op",
        dest="allowed",
        action="append",
        type=readers.op,
        metavar="NAME",
        help="an op that a graph may use although it does more than compute, such as ReadFile; may be repeated",
    )
    add(
        "--trust",
        action="append",
        type=readers.path,
        metavar="KEYFILE",
        help="serve nothing but versions that one of the public keys in this file signed; may be repeated",
    )
    add(
        "--trainer",
        dest="trainers",
        action="append",
        type=readers.trainer,
        metavar="[MODEL=]HOST:PORT",
        help="whom a fresh sync asks to publish first; repeated where models have trainers of their own",
    )


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how it is served").add_argument
    add("--host", type=readers.host, metavar="ADDRESS", help=f"address to listen on (default: {HOST})")
    for option, default, what in (
        ("--port", PREDICTIONS_PORT, "predictions, by gRPC"),
        ("--rest-port", REST_PORT, "predictions by HTTP, health and metrics"),
        ("--control-port", CONTROL_PORT, "status, sync and pins"),
    ):
        add(option, type=read_port, metavar="N", help=f"{what} (default: {default}; 0: any free)")
    add(
        "--poll-seconds",
        type=read_poll,
        metavar="S",
        help="how often to look where the file system does not say that something is new (default: 5)",
    )
    add(
        "--state",
        type=readers.path,
        metavar="DIR",
        help="where pins and labels are remembered (default: paramsync/CONTROL_PORT in $XDG_STATE_HOME or"
        " ~/.local/state)",
    )
    add(
        "--reload-root",
        dest="reload_roots",
        action="append",
        type=readers.path,
        metavar="DIR",
        help="callers may have models served (HandleReloadConfigRequest) whose stores are below this folder; may be"
        " repeated (default: any folder where --host is a loopback address, else none)",
    )
    add(
        "--allow-host",
        dest="allowed_hosts",
        action="append",
        type=readers.host,
        metavar="NAME",
        help="a name that requests by HTTP may be for, such as a proxy's, where --host is a loopback address and no"
        " token is configured; may be repeated (default: localhost and loopback addresses alone)",
    )
    add("--token-file", type=readers.path, metavar="FILE", help=TOKEN_FILE_HELP)
    add(
        "--auth-reads",
        action="store_true",
        help="calls that read, predictions among them, need a token too; health does not",
    )
    add(
        "--tls-cert",
        type=readers.path,
        metavar="FILE",
        help="the certificate of this server, and those it is signed by",
    )
    add("--tls-key", type=readers.path, metavar="FILE", help="its key; with both every port speaks TLS")
    add(
        "--tls-client-ca",
        type=readers.path,
        metavar="FILE",
        help="who signs the certificates of callers: by gRPC each caller shows one, by HTTP those that change something"
        " do, or show a token",
    )
    add(
        "--trainer-tls-ca",
        type=readers.path,
        metavar="FILE",
        help="who signs the certificates of trainers, which then are called by TLS",
    )
    add(
        "--workers",
        type=read_workers,
        metavar="N",
        help="processes that answer, beside the one that follows the stores (default: the processors it may use)",
    )
    add(
        "--queue",
        type=read_queue,
        metavar="N",
        help="predictions that may wait or be computed in each worker; more are refused at once (default: 1024)",
    )
    add(
        "--batch-rows",
        type=read_rows,
        metavar="N",
        help="rows that go into one call when requests wait together; 1: each goes alone (default: 256)",
    )
    add(
        "--max-message-mb",
        dest="message_bytes",
        type=read_message,
        metavar="N",
        help="the largest request or answer (default: 64)",
    )
    add(
        "--grpc-server",
        choices=GRPC_SERVERS,
        help="what answers predictions by gRPC: our own server, or grpcio's, which is slower and bounds less"
        " (default: own)",
    )
    add("--log-format", choices=LOG_FORMATS, help="json: one object on each line, for programs (default: text)")


def _model(text: str) -> tuple[str, Path]:
    name, _, store = text.partition("=")
    try:
        return readers.name(name), readers.path(store)
    except argparse.ArgumentTypeError as error:
        problem = f"expected NAME=STORE, such as digits=/var/lib/paramsync/digits, found {text!r}: {error}"
        raise argparse.ArgumentTypeError(problem) from None
