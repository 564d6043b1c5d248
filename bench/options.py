"""The command line of each benchmark: what it does, who it is measured against, and what it may be told."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PEERS = ("checkpoint", "saver", "savedmodel", "savedmodule", "h5", "safetensors", "orbax")  # of publish and restore
CALLS = ("session", "signature", "concrete", "keras_call", "predict_on_batch", "handles")  # the peers of `call`
SAVINGS = ("checkpoint_save", "async_checkpoint", "model_checkpoint", "orbax_async")  # the peers of `stall`
LOOPS = ("saver", "saver_poll", "savedmodel", "savedmodule")  # the peers of `freshness`
SWAPPING = ("assign", "savedmodel")  # the peers of `swap`
SERVING = ("tf_serving_emulated", "triton", "mlserver", "ray_serve", "litserve")  # the peers of `peers`
MEMORY = Path("/dev/shm")  # where Linux keeps files in memory
SEVERAL = 4  # processors, with which a server can be asked more while a publisher works

_EXAMPLES = """\
examples:
  python -m bench publish                       the table, 268 MB in 32 tensors
  python -m bench restore --json restore.json   and all figures in a file
  python -m bench delta --mb 50 --json -        as JSON, the table on stderr
  python -m bench publish --only checkpoint,h5  against these two alone
  python -m bench stall --sizes 268             one size; all take half an hour
  python -m bench swap --help                   what one of them may be told

Safetensors and Orbax take part where they are installed; `make bench` installs
them.
"""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`runs` is how many rounds count unless something else is said, `seconds` how long what is timed goes on in each;
    `options` are names of `_OPTIONS`."""

    does: str
    options: tuple[str, ...]
    peers: tuple[str, ...] = ()
    runs: int = 9
    seconds: float = 4


BENCHMARKS = {
    "publish": Benchmark("write a version", ("tensors", "runs"), PEERS),
    "restore": Benchmark("bring a version in", ("tensors", "runs", "large-mb"), PEERS),
    "delta": Benchmark("write a version of which 95 %% are the bytes before", ("tensors", "runs")),
    "call": Benchmark("predict; --mb is the size of the embedding table", ("parameters", "runs"), CALLS),
    "stall": Benchmark(
        "train, and publish meanwhile", ("tensors", "sizes", "seconds", "device", "runs"), SAVINGS, runs=5
    ),
    "freshness": Benchmark("from a step to the first answer with it", ("tensors", "frozen", "runs"), LOOPS),
    "swap": Benchmark(
        "answers while versions are swapped in", ("load", "seconds", "runs"), SWAPPING, runs=20, seconds=1
    ),
    "memory": Benchmark("what a server takes, over many swaps", ("tensors", "swaps"), runs=1),
    "serve": Benchmark("answers a second, beside gRPC that only answers", ("seconds", "runs"), runs=5),
    "exported": Benchmark(
        "answers a second of an export, beside the same model published", ("seconds", "runs"), runs=5
    ),
    "workers": Benchmark("several workers against one", ("seconds", "runs"), runs=5, seconds=2),
    "tls": Benchmark("answers a second by TLS, beside in plain", ("seconds", "runs"), runs=5, seconds=2),
    "peers": Benchmark(
        "other systems that serve, beside ours",
        ("load", "seconds", "cache", "merge", "runs"),
        SERVING,
        runs=3,
        seconds=3,
    ),
    "start": Benchmark("until a server's first answer", ("tensors", "runs"), runs=5),
}


def parser() -> argparse.ArgumentParser:
    """One subcommand a benchmark. Sizes become bytes."""
    top = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures paramsync against a copy of the same bytes in memory and against its\n"
        "peers, by turns, in one run, on parameters that change from publication to\npublication.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = top.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(name, help=benchmark.does, allow_abbrev=False)
        for option in ("mb", *benchmark.options):
            command.add_argument(f"--{option}", **_OPTIONS[option])
        command.set_defaults(runs=benchmark.runs, only=None, no_peers=False)
        if "seconds" in benchmark.options:
            command.set_defaults(seconds=benchmark.seconds)
        if benchmark.peers:
            which = command.add_mutually_exclusive_group()
            which.add_argument(
                "--only",
                type=_some_of(benchmark.peers),
                metavar="PEER,...",
                help=f"peers to measure, of {', '.join(benchmark.peers)}",
            )
            which.add_argument("--no-peers", action="store_true", help="measure no peer")
        command.add_argument(
            "--folder", type=Path, metavar="DIR", help=f"where the files go (default {MEMORY} where there is room)"
        )
        command.add_argument(
            "--json", metavar="PATH", help="write all figures as one JSON object; -: print it, and the table on stderr"
        )
    return top


def _bytes(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected megabytes, more than 0, found {text!r}")
    return int(value * 1e6)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_bytes(one) for one in text.split(","))


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, found {text!r}")
    return int(text)


def _tensors(text: str) -> int:
    if (count := _count(text)) % 2:
        raise argparse.ArgumentTypeError(f"expected an even number, as of kernels and biases, found {text!r}")
    return count


def _percent(text: str) -> int:
    if not text.isdecimal() or int(text) > 99:
        raise argparse.ArgumentTypeError(f"expected a percentage, 0 to 99, found {text!r}")
    return int(text)


def _networks(text: str) -> tuple[int, ...]:
    """A layer has two parameters, a kernel and a bias."""
    return tuple(_tensors(one) for one in text.split(","))


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, found {text!r}")
    return value


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected a share, between 0 and 1, found {text!r}")
    return value


def _some_of(peers: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parsed(text: str) -> tuple[str, ...]:
        names = text.split(",")
        if unknown := sorted(set(names) - set(peers)):
            found = ", ".join(map(repr, unknown))
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(peers)}, found {found}")
        return tuple(one for one in peers if one in names)

    return parsed


_OPTIONS: dict[str, dict[str, Any]] = {
    "mb": {
        "dest": "bytes",
        "type": _bytes,
        "default": "268",
        "metavar": "N",
        "help": "size of all parameters (default %(default)s)",
    },
    "large-mb": {
        "dest": "large_bytes",
        "type": _bytes,
        "default": "1000",
        "metavar": "N",
        "help": "the other size, to see that restoring does not depend on it (default %(default)s)",
    },
    "sizes": {
        "type": _sizes,
        "default": "27,268,1074",
        "metavar": "N,...",
        "help": "megabytes of the networks that are trained, beside --mb (default %(default)s)",
    },
    "tensors": {
        "type": _tensors,
        "default": "32",
        "metavar": "N",
        "help": "how many parameters, an even number (default %(default)s)",
    },
    "frozen": {
        "type": _percent,
        "default": "0",
        "metavar": "PERCENT",
        "help": "of the parameters, which do not change, as of a model that is tuned (default %(default)s)",
    },
    "parameters": {
        "type": _networks,
        "default": "6,200,1000",
        "metavar": "N,...",
        "help": "networks of so many parameters (default %(default)s)",
    },
    "load": {
        "type": _share,
        "default": "0.7" if len(os.sched_getaffinity(0)) >= SEVERAL else "0.4",
        "metavar": "SHARE",
        "help": "of what the server can answer while versions are published (default %(default)s here)",
    },
    "seconds": {
        "type": _seconds,
        "metavar": "T",
        "help": "how long to train, or to call, at a time (default %(default)s)",
    },
    "swaps": {
        "type": _count,
        "default": "1000",
        "metavar": "N",
        "help": "how many versions are swapped in (default %(default)s)",
    },
    "device": {
        "choices": ("cpu", "gpu"),
        "default": "cpu",
        "help": "what to train on (default %(default)s)",
    },
    "cache": {
        "type": Path,
        "default": Path("~/.cache/paramsync-bench").expanduser(),
        "metavar": "DIR",
        "help": "where peers are installed, each in a virtual environment (default ~/.cache/paramsync-bench)",
    },
    "merge": {
        "action": "store_true",
        "help": "add to the figures that are in the file of --json, of other peers or of other rounds",
    },
    "runs": {"type": _count, "metavar": "N", "help": "rounds that count (default %(default)s)"},
}
