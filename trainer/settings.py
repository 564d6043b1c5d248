"""The training program's settings: its arguments, and environment variables for TensorFlow."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramsync.errors import SettingsError
from paramsync.moments import LATEST_MOMENT
from paramsync.program.flags import TOKEN_FILE_HELP, Parser, check_text, seconds, whole
from paramsync.program.process import LOG_FORMATS
from paramsync.publishing.schedule import PublishSchedule
from paramsync.rpc import settings as credentials
from paramsync.rpc.addresses import HOST, TRAINER_PORT, read_port
from paramsync.rpc.tls import TlsFiles, tls_files
from paramsync.rpc.tokens import Tokens
from paramsync.version import NUMBERS

from . import job_source
from .job_source import is_source

_SEEDS = 1 << 32  # the limit of numpy and Keras
_GATES = ("loss", "min loss", "max loss")  # the only metric of a job is its loss
_COUNT = whole(1, NUMBERS - 1)
_SECONDS = seconds(below=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The program's settings. If `steps` is None, the program trains until it is stopped."""

    job: str
    store: Path | str  # a str is the address of a bucket
    schedule: PublishSchedule
    steps: int | None
    data: Path | None
    seed: int
    keep: int
    keep_for: float | None
    keep_every: float | None
    durable: bool
    signing_key: Path | None
    allow_nan: bool
    allow_ops: tuple[str, ...]
    publish_if: str | None
    serve_after: float | None
    state: Path
    state_seconds: float
    held_out: Path | None
    tensorboard: Path | None
    host: str
    control_port: int
    metrics_port: int | None
    tokens: Tokens | None
    auth_reads: bool
    log_format: str
    tls: TlsFiles | None


def parse(arguments: Sequence[str]) -> Settings:
    """Read the program's arguments. Raises SettingsError."""
    check_text(arguments)
    given = vars(_parser().parse_args(arguments))
    every_steps, every_seconds = given.pop("every_steps"), given.pop("every_seconds")
    if every_steps is None and every_seconds is None:
        every_seconds = 1.0
    given["allow_ops"] = tuple(given["allow_ops"] or ())
    store = given["store"]
    if isinstance(store, str):
        if given["state"] is None:
            raise SettingsError(f"--store {store}: expected --state DIR with the address of a bucket, found none")
        if given["keep_for"] is not None:
            raise SettingsError(f"--keep-for: expected a directory as --store, found {store}: a bucket keeps by --keep")
    else:
        given["state"] = given["state"] or store / "training"
        if given["state"].resolve() == store.resolve():  # both would write a file `checkpoint`
            raise SettingsError(f"--state {given['state']}: expected another directory than the store, found the same")
    if given["keep_every"] is not None and given["keep_for"] is None:
        raise SettingsError(f"--keep-every: expected --keep-for T with it, found {given['keep_every']:g} alone")
    tokens = credentials.tokens(given.pop("token_file"))
    tls = tls_files(given.pop("tls_cert"), given.pop("tls_key"), given.pop("tls_client_ca"))
    if given["auth_reads"] and tokens is None and (tls is None or tls.client_ca is None):
        raise SettingsError("--auth-reads: expected --token-file FILE or --tls-client-ca FILE with it, found neither")
    return Settings(
        **given, tokens=tokens, tls=tls, schedule=PublishSchedule(every_steps=every_steps, every_seconds=every_seconds)
    )


def set_environment() -> None:
    """Prepare the environment for TensorFlow, Keras and gRPC. Call this before they are imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # we report a taken port ourselves
    os.environ["KERAS_BACKEND"] = "tensorflow"  # other backends cannot run the training step


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="paramsync train", description="Train something and publish it while it is being trained.")

    def add(option: str, text: str, **how: Any) -> None:
        parser.add_argument(option, help=text, **how)

    job = "what to train: a function that returns a paramsync.Job (default: %(default)s, a network learns digits)"
    add("--job", job, type=_source, default=job_source.DEFAULT, metavar="MODULE:FUNCTION")
    store = "where to publish: a directory, or the address of a bucket, such as s3://bucket/models/digits"
    add("--store", store, type=_store, required=True, metavar="DIR")
    add("--every-steps", "publish every N steps", type=_COUNT, metavar="N")
    add("--every-seconds", "publish every T seconds (default: 1, without --every-steps)", type=_SECONDS, metavar="T")
    add("--steps", "stop at step N (default: train until stopped)", type=_COUNT, metavar="N")
    add("--data", "given to the job; digits: an mnist.npz (default: drawn here)", type=Path, metavar="PATH")
    seed = "given to the job; digits: of drawn examples, weights and batches (default: 0)"
    add("--seed", seed, type=whole(0, _SEEDS - 1), default=0, metavar="N")
    add("--keep", "how many versions stay in the store (default: 5)", type=_COUNT, default=5, metavar="N")
    keep_for = "older ones stay for T seconds too (default: they go)"
    add("--keep-for", keep_for, type=_SECONDS, metavar="T")
    keep_every = "of these one for every T seconds, such as 3600 (default: all of them)"
    add("--keep-every", keep_every, type=_SECONDS, metavar="T")
    add("--durable", "have each version, and each state, on the disk before it counts", action="store_true")
    add("--signing-key", "sign versions with this key, which paramsync keys new makes", type=Path, metavar="FILE")
    add("--allow-nan", "publish NaN and infinity too (default: such a version is refused)", action="store_true")
    allow_op = "publish a graph with this op, which the inferencer is told to allow too; may be repeated"
    add("--allow-op", allow_op, dest="allow_ops", action="append", metavar="NAME")
    gate = "publish only where this is no worse than in the newest version: loss, which should fall, or 'max loss'"
    add("--publish-if", gate, choices=_GATES, metavar="METRIC")
    serve_after = "have all servers swap to a version at the same moment, T seconds after its commit (default: at once)"
    add("--serve-after", serve_after, type=seconds(below=LATEST_MOMENT), metavar="T")
    add(
        "--state",
        "where to save what resuming needs (default: STORE/training; needed with a bucket)",
        type=Path,
        metavar="DIR",
    )
    state_seconds = "save what resuming needs every T seconds (default: 10)"
    add("--state-seconds", state_seconds, type=_SECONDS, default=10.0, metavar="T")
    held_out = "given to the job; digits: where to write the examples not trained on, as .npz"
    add("--held-out", held_out, type=Path, metavar="FILE")
    add("--tensorboard", "write loss, speed, version and stall for TensorBoard here", type=Path, metavar="DIR")
    add("--host", "address to listen on (default: %(default)s)", default=HOST)
    control = "0: any free one (default: %(default)s)"
    add("--control-port", control, type=read_port, default=TRAINER_PORT, metavar="PORT")
    log_format = "json: one object on each line, for programs (default: text)"
    add("--log-format", log_format, choices=LOG_FORMATS, default="text")
    add("--metrics-port", "answer GET /metrics for Prometheus there (default: none)", type=read_port, metavar="PORT")
    add("--token-file", TOKEN_FILE_HELP, type=Path, metavar="FILE")
    add("--tls-cert", "the certificate of this program, and those it is signed by", type=Path, metavar="FILE")
    add("--tls-key", "its key; with both every port speaks TLS", type=Path, metavar="FILE")
    client_ca = "who signs the certificates of callers: by gRPC each shows one, by HTTP with --auth-reads"
    add("--tls-client-ca", client_ca, type=Path, metavar="FILE")
    add("--auth-reads", "calls that read, /metrics among them, need a token too; health does not", action="store_true")
    return parser


def _store(text: str) -> Path | str:
    return text if "://" in text else Path(text)


def _source(text: str) -> str:
    if not (is_source(text) and text.rpartition(":")[2].isidentifier()):
        raise argparse.ArgumentTypeError(f"expected MODULE:FUNCTION, found {text!r}")
    return text
