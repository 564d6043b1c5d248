"""The training program's settings: arguments, and the environment it gives to TensorFlow."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paramsync.errors import SettingsError
from paramsync.program.flags import Parser, check_text, seconds, whole
from paramsync.publishing.schedule import PublishSchedule
from paramsync.rpc.addresses import HOST, TRAINER_PORT, read_port
from paramsync.store.store import NUMBERS

from . import job_source

_SEEDS = 1 << 32  # what numpy and Keras take
_MOST = NUMBERS - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the program was asked to do. `steps` is None where it trains until it is stopped."""

    job: str
    store: Path
    schedule: PublishSchedule
    steps: int | None
    data: Path | None
    seed: int
    keep: int
    durable: bool
    allow_nan: bool
    state: Path
    state_seconds: float
    held_out: Path | None
    tensorboard: Path | None
    host: str
    control_port: int
    metrics_port: int | None


def parse(arguments: Sequence[str]) -> Settings:
    """Read the program's arguments. Raises SettingsError, one line that says what to mend."""
    check_text(arguments)
    given = _parser().parse_args(arguments)
    every_seconds = given.every_seconds
    if given.every_steps is None and every_seconds is None:
        every_seconds = 1.0
    state: Path = given.state or given.store / "training"
    if state.resolve() == given.store.resolve():  # each has a file `checkpoint`
        raise SettingsError(f"--state {state}: expected another directory than the store, found the same")
    return Settings(
        job=given.job,
        store=given.store,
        schedule=PublishSchedule(every_steps=given.every_steps, every_seconds=every_seconds),
        steps=given.steps,
        data=given.data,
        seed=given.seed,
        keep=given.keep,
        durable=given.durable,
        allow_nan=given.allow_nan,
        state=state,
        state_seconds=given.state_seconds,
        held_out=given.held_out,
        tensorboard=given.tensorboard,
        host=given.host,
        control_port=given.control_port,
        metrics_port=given.metrics_port,
    )


def set_environment() -> None:
    """Prepare the environment for TensorFlow, Keras and gRPC; to be called before they are imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it has to say about a taken port, we say
    os.environ["KERAS_BACKEND"] = "tensorflow"  # another one would not run the training step


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="paramsync train", description="Train something and publish it while it is being trained.")
    add = parser.add_argument
    add(
        "--job",
        type=_source,
        default=job_source.DEFAULT,
        metavar="MODULE:FUNCTION",
        help="what to train: a function that returns a paramsync.Job (default: %(default)s, a network learns digits)",
    )
    add("--store", type=Path, required=True, metavar="DIR", help="where to publish")
    add("--every-steps", type=whole(1, _MOST), metavar="N", help="publish every N steps")
    add(
        "--every-seconds",
        type=seconds(below=math.inf),
        metavar="T",
        help="publish every T seconds (default: 1, without --every-steps)",
    )
    add("--steps", type=whole(1, _MOST), metavar="N", help="stop at step N (default: train until stopped)")
    add("--data", type=Path, metavar="PATH", help="given to the job; digits: an mnist.npz (default: drawn here)")
    add(
        "--seed",
        type=whole(0, _SEEDS - 1),
        default=0,
        metavar="N",
        help="given to the job; digits: of drawn examples, weights and batches (default: 0)",
    )
    add("--keep", type=whole(1, _MOST), default=5, metavar="N", help="how many versions stay in the store (default: 5)")
    add("--durable", action="store_true", help="have each version, and each state, on the disk before it counts")
    add("--allow-nan", action="store_true", help="publish NaN and infinity too (default: such a version is refused)")
    add("--state", type=Path, metavar="DIR", help="where to save what resuming needs (default: STORE/training)")
    add(
        "--state-seconds",
        type=seconds(below=math.inf),
        default=10.0,
        metavar="T",
        help="save what resuming needs every T seconds (default: 10)",
    )
    add(
        "--held-out",
        type=Path,
        metavar="FILE",
        help="given to the job; digits: where to write the examples not trained on, as .npz",
    )
    add("--tensorboard", type=Path, metavar="DIR", help="write loss, speed, version and stall for TensorBoard here")
    add("--host", default=HOST, help="address to listen on (default: %(default)s)")
    add(
        "--control-port",
        type=read_port,
        default=TRAINER_PORT,
        metavar="PORT",
        help="0: any free one (default: %(default)s)",
    )
    add(
        "--metrics-port",
        type=read_port,
        metavar="PORT",
        help="answer GET /metrics for Prometheus there (default: none)",
    )
    return parser


def _source(text: str) -> str:
    if not job_source.is_source(text):
        raise argparse.ArgumentTypeError(f"expected MODULE:FUNCTION, found {text!r}")
    return text
