"""Command line and environment: what may be said, and what is wrong with it, known before TensorFlow is imported."""

from __future__ import annotations

import argparse
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paramsync.addresses import CONTROL_PORT, HOST, PREDICTIONS_PORT, check_different, read_port
from paramsync.arguments import Parser, check_text, seconds
from paramsync.errors import SettingsError, StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    name: str
    store: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one run of the program is told. Ports: 0 is any free one."""

    models: tuple[ModelSettings, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    verify: Literal["checksums", "sizes"] = "checksums"
    allowed: tuple[str, ...] = ()
    host: str = HOST
    port: int = PREDICTIONS_PORT
    control_port: int = CONTROL_PORT
    poll_seconds: float = 5.0


def parse(arguments: Sequence[str]) -> Settings:
    """Raises SettingsError, or StoreError for a store that cannot be one."""
    check_text(arguments)
    found = _parser().parse_args(arguments)
    models = tuple(_model(text) for text in found.model)
    names = [one.name for one in models]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"--model {name}=...: expected each name once, found it {names.count(name)} times")
    if bool(found.inputs) != bool(found.outputs):
        raise SettingsError("expected --inputs and --outputs together, found one of them")
    if found.inputs and len(models) > 1:
        raise SettingsError(
            f"--inputs and --outputs name tensors of one graph: expected one --model with them, found {len(models)}"
        )
    check_different({"--port": found.port, "--control-port": found.control_port})
    for one in models:
        check_store(one.store)
    return Settings(
        models=models,
        inputs=found.inputs,
        outputs=found.outputs,
        verify=found.verify,
        allowed=tuple(found.allow_op),
        host=found.host,
        port=found.port,
        control_port=found.control_port,
        poll_seconds=found.poll_seconds,
    )


def check_store(path: Path) -> None:
    """A store may be missing, as long as nobody publishes. Raises StoreError for what never can be one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(path, f"cannot be read: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(path, "expected a directory, found a file")
    if not os.access(path, os.R_OK | os.X_OK):
        raise StoreError(path, "cannot be read: permission denied; the user that runs this must be able to list it")


def prepare_environment() -> None:
    """What TensorFlow and gRPC read when they are imported. What the operator has set stays."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # it serves on the CPU: no look for GPUs, no words about them
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m inferencer", description="Serves predictions from the newest published version.")
    add = parser.add_argument
    add("--model", action="append", required=True, metavar="NAME=STORE", help="a model and its store; may be repeated")
    add(
        "--inputs",
        type=_names,
        default=(),
        metavar="x:0,...",
        help="tensors, for stores that TensorFlow's Saver writes",
    )
    add(
        "--outputs",
        type=_names,
        default=(),
        metavar="y:0,...",
        help="tensors, for stores that TensorFlow's Saver writes",
    )
    add(
        "--verify",
        choices=("checksums", "sizes"),
        default="checksums",
        help="what is checked before a version serves: every byte and value, or only names, shapes, dtypes and sizes,"
        " which takes no time; what TensorFlow itself wrote is always checked in full (default: %(default)s)",
    )
    add(
        "--allow-op",
        action="append",
        type=_op,
        default=[],
        metavar="NAME",
        help="an op that a graph may use although it does more than compute, such as ReadFile; may be repeated",
    )
    add("--host", default=HOST, help="address to listen on (default: %(default)s)")
    add("--port", type=read_port, default=PREDICTIONS_PORT, help="predictions (default: %(default)s; 0: any free)")
    add(
        "--control-port",
        type=read_port,
        default=CONTROL_PORT,
        help="status and sync (default: %(default)s; 0: any free)",
    )
    add(
        "--poll-seconds",
        type=seconds(below=86400),
        default=5.0,
        metavar="S",
        help="how often to look where the file system does not say that something is new (default: %(default)s)",
    )
    return parser


def _model(text: str) -> ModelSettings:
    name, equals, store = text.partition("=")
    if not (equals and store and re.fullmatch(r"[\w.-]+", name)):
        raise SettingsError(f"--model {text}: expected NAME=STORE, such as digits=/var/lib/paramsync/digits")
    return ModelSettings(name=name, store=Path(store))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(one.strip() for one in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names of tensors, such as x:0,y:0, found {text!r}")
    return names


def _op(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w>]*", text):
        raise argparse.ArgumentTypeError(f"expected the name of one op, such as ReadFile, found {text!r}")
    return text
