"""The command line of the benchmarks, and the environment for TensorFlow. Imports nothing that takes time."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paramsync.errors import SettingsError

FORMATS = ("checkpoint", "saver", "savedmodel", "safetensors")  # the peers of `publish` and `restore`
SAVINGS = ("checkpoint_save", "async_checkpoint")  # the peers of `stall`
LOOPS = ("saver", "savedmodel")  # the peers of `freshness`
PARTS = ("transfers", "bytes", "behind", "requests", "stall", "moments", "away")  # of `mirror`
NOT_ASKED_FOR = "not asked for"

_ENDPOINT = "AWS_ENDPOINT_URL"
_MEMORY = Path("/dev/shm")  # where Linux keeps files in memory
_PROCESSORS_FOR_LOAD = 4  # with fewer processors for publisher, server and callers, the default load is lower
_EXAMPLES = """\
examples:
  python -m bench publish                       the table, 268 MB in 32 tensors
  python -m bench restore --json restore.json   and all figures in a file
  python -m bench serve --json -                as JSON, the table on stderr
  python -m bench publish --only checkpoint     against one peer
  python -m bench swap --help                   the options of one benchmark

Safetensors takes part if it is installed; `make bench` installs it.
"""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One subcommand: its help, the names of its options, its peers or parts, the defaults of --runs and --seconds."""

    help: str
    options: tuple[str, ...]
    peers: tuple[str, ...] = ()
    runs: int = 9
    seconds: float = 4


BENCHMARKS = {
    "publish": Benchmark("write a version", ("tensors", "runs"), FORMATS),
    "restore": Benchmark("read a version", ("tensors", "runs"), FORMATS),
    "stall": Benchmark("train while publishing", ("tensors", "seconds", "device", "runs"), SAVINGS, runs=5),
    "freshness": Benchmark("from a step to the first answer from it", ("tensors", "frozen", "runs"), LOOPS),
    "swap": Benchmark("latency while versions are swapped in", ("load", "seconds", "runs"), runs=20, seconds=1),
    "serve": Benchmark("predictions a second, beside plain gRPC", ("seconds", "runs"), runs=5, seconds=2),
    "workers": Benchmark("several workers against one", ("seconds", "runs"), runs=5, seconds=2),
    "mirror": Benchmark("a store beyond an object store", ("tensors", "address", "seconds", "runs"), PARTS, runs=5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One benchmark and its options. Options that the benchmark lacks keep their defaults.

    `peers` are the requested peers, installed or not, or the parts of `mirror`; `folder` is where the files go;
    `frozen` is the percentage of the parameters that do not change; `load` is the share of the server's capacity that
    callers use.
    """

    benchmark: str
    bytes: int
    runs: int
    peers: tuple[str, ...]
    folder: Path
    json: str | None
    tensors: int = 0
    frozen: int = 0
    seconds: float = 0.0
    load: float = 0.0
    device: str = "cpu"
    address: str = ""

    def absent(self) -> dict[str, str]:
        """Return the peers that were not requested, with NOT_ASKED_FOR as the reason."""
        return {name: NOT_ASKED_FOR for name in BENCHMARKS[self.benchmark].peers if name not in self.peers}


def parse(argv: Sequence[str]) -> Settings:
    """Parse the command line. Raises SettingsError; wrong arguments end the program as argparse does."""
    arguments = vars(_parser().parse_args(argv))
    only, no_peers = arguments.pop("only"), arguments.pop("no_peers")
    peers = () if no_peers else only or BENCHMARKS[arguments["benchmark"]].peers
    settings = Settings(**{**arguments, "folder": arguments["folder"] or _MEMORY}, peers=peers)
    if settings.bytes < settings.tensors * 1024:
        megabytes = f"{settings.bytes / 1e6:g}"
        raise SettingsError(f"--mb {megabytes}: expected at least 1 KiB for each of {settings.tensors} tensors")
    if settings.json not in (None, "-") and not Path(settings.json).parent.is_dir():
        raise SettingsError(f"--json {settings.json}: expected a file in a folder that exists")
    return replace(settings, folder=folder(arguments["folder"], _needed(settings)))


def folder(asked: Path | None, needed: int) -> Path:
    """Return the requested folder, or by default a folder with room, in memory if possible. Raises SettingsError."""
    candidates = [asked] if asked else [_MEMORY, Path(tempfile.gettempdir())]
    rooms = {path: shutil.disk_usage(path).free for path in candidates if path.is_dir() and os.access(path, os.W_OK)}
    for path, room in rooms.items():
        if room > needed:
            return path
    found = ", ".join(f"{room / 1e6:.0f} MB in {path}" for path, room in rooms.items()) or "no such folder"
    raise SettingsError(f"--folder: expected room for {needed / 1e6:.0f} MB of files, found {found}")


def set_environment() -> None:
    """Prepare the environment for TensorFlow and Keras, before they are imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"


def endpoint() -> str:
    """Return the URL of the S3 server that the environment names. Raises SettingsError unless it begins with http://."""
    found = os.environ.get(_ENDPOINT, "")
    if not found.startswith("http://"):
        raise SettingsError(f"{_ENDPOINT}: expected http://HOST:PORT to count requests, found {found!r}; see --only")
    return found


@contextmanager
def through(other: str) -> Iterator[None]:
    """Name another S3 server in the environment while the `with` block runs."""
    before, os.environ[_ENDPOINT] = endpoint(), other
    try:
        yield
    finally:
        os.environ[_ENDPOINT] = before


def _needed(settings: Settings) -> int:
    """Return the most bytes of files at a time: old and new versions, retired files, and files of peers."""
    copies = {"stall": 5, "freshness": 10, "restore": 3, "mirror": 4}.get(settings.benchmark, 8)
    return (copies + 4 * len(settings.peers)) * settings.bytes


def _parser() -> argparse.ArgumentParser:
    """Return a parser with a subcommand for each benchmark. Sizes become bytes."""
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
        command = commands.add_parser(name, help=benchmark.help, allow_abbrev=False)
        for option in ("mb", *benchmark.options):
            command.add_argument(f"--{option}", **_OPTIONS[option])
        command.set_defaults(runs=benchmark.runs, only=None, no_peers=False)
        if "seconds" in benchmark.options:
            command.set_defaults(seconds=benchmark.seconds)
        if benchmark.peers:
            which = command.add_mutually_exclusive_group()
            peers = ", ".join(benchmark.peers)
            which.add_argument("--only", type=_some_of(benchmark.peers), metavar="NAME,...", help=f"some of {peers}")
            which.add_argument("--no-peers", action="store_true", help="measure none of them")
        command.add_argument(
            "--folder", type=Path, metavar="DIR", help=f"where the files go (default {_MEMORY} if it has room)"
        )
        command.add_argument(
            "--json", metavar="PATH", help="write all figures as one JSON object; -: print it, and the table on stderr"
        )
    return top


def _number(expected: str, convert: Callable[[str], Any], allowed: Callable[[Any], bool]) -> Callable[[str], Any]:
    def parse_number(text: str) -> Any:
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None or not allowed(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}")
        return value

    return parse_number


def _some_of(peers: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse_peers(text: str) -> tuple[str, ...]:
        names = text.split(",")
        if unknown := sorted(set(names) - set(peers)):
            raise argparse.ArgumentTypeError(
                f"expected some of {', '.join(peers)}, found {', '.join(map(repr, unknown))}"
            )
        return tuple(peer for peer in peers if peer in names)

    return parse_peers


_OPTIONS: dict[str, dict[str, Any]] = {
    "mb": {
        "dest": "bytes",
        "type": _number("megabytes, more than 0", lambda text: int(float(text) * 1e6), lambda n: 0 < n < 1e12),
        "default": "268",
        "metavar": "N",
        "help": "size of all parameters (default %(default)s)",
    },
    "tensors": {
        "type": _number("an even number, as of kernels and biases", int, lambda n: n > 0 and n % 2 == 0),
        "default": "32",
        "metavar": "N",
        "help": "how many parameters, an even number (default %(default)s)",
    },
    "frozen": {
        "type": _number("a percentage, 0 to 99", int, lambda n: 0 <= n <= 99),
        "default": "0",
        "metavar": "PERCENT",
        "help": "share of the parameters that do not change, as in fine-tuning (default %(default)s)",
    },
    "load": {
        "type": _number("a share, between 0 and 1", float, lambda n: 0 < n < 1),
        "default": "0.7" if len(os.sched_getaffinity(0)) >= _PROCESSORS_FOR_LOAD else "0.4",
        "metavar": "SHARE",
        "help": "of the server's capacity while versions are published (default %(default)s here)",
    },
    "seconds": {
        "type": _number("seconds, more than 0", float, lambda n: 0 < n <= 3600),
        "metavar": "T",
        "help": "how long to train, or to call, at a time (default %(default)s)",
    },
    "device": {"choices": ("cpu", "gpu"), "default": "cpu", "help": "what to train on (default %(default)s)"},
    "address": {"required": True, "metavar": "URL", "help": "of an empty folder, such as s3://bucket/bench"},
    "runs": {
        "type": _number("a whole number, 1 or more", int, lambda n: n > 0),
        "metavar": "N",
        "help": "rounds that count (default %(default)s)",
    },
}
