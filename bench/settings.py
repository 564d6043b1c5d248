"""What can be said to a benchmark, and the environment it gives to TensorFlow. Imports nothing that takes time."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from paramsync.errors import SettingsError

PEERS = ("checkpoint", "saver", "savedmodel", "savedmodule", "h5", "safetensors", "orbax")
CALLS = ("session", "signature", "concrete", "keras_call", "predict_on_batch", "handles")  # the peers of `call`
NOT_ASKED_FOR = "not asked for"

_NETWORKS = 100 << 20  # bytes of the SavedModels of all networks but the embedding
_MEMORY = Path("/dev/shm")  # where Linux keeps files in memory
_EXAMPLES = """\
examples:
  python -m bench publish                         the table, 268 MB in 32 tensors
  python -m bench restore --json restore.json     the table, and all figures in a file
  python -m bench delta --mb 50 --runs 3 --json - one JSON object, last on the standard output
  python -m bench publish --only checkpoint,h5    against these two alone
  python -m bench call --parameters 6             one network, and the embedding

Safetensors and Orbax take part where they are installed; `make bench` installs them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One benchmark and its size. `peers` are those asked for, installed or not; `folder` is where the files go.

    `parameters` are the numbers of parameters of the networks that are called.
    """

    benchmark: str
    bytes: int
    large_bytes: int
    tensors: int
    parameters: tuple[int, ...]
    runs: int
    peers: tuple[str, ...]
    folder: Path
    json: str | None


def parse(argv: Sequence[str]) -> Settings:
    """Raises SettingsError; wrong arguments end the program as argparse does."""
    found = _parser().parse_args(argv)
    if found.tensors < 2:
        raise SettingsError(f"--tensors: expected at least 2, found {found.tensors}")
    size = int(found.mb * 1e6)
    large = int(found.large_mb * 1e6)
    if size < found.tensors * 1024:
        raise SettingsError(f"--mb {found.mb:g}: expected at least 1 KiB for each of {found.tensors} tensors")
    peers = CALLS if found.benchmark == "call" else PEERS
    if unknown := [one for one in found.only or () if one not in peers]:
        raise SettingsError(f"--only: expected some of {', '.join(peers)}, found {', '.join(unknown)}")
    asked = () if found.no_peers else found.only or peers
    if found.json not in (None, "-") and not Path(found.json).parent.is_dir():
        raise SettingsError(f"--json {found.json}: expected a file in a folder that is there")
    return Settings(
        benchmark=found.benchmark,
        bytes=size,
        large_bytes=large,
        tensors=found.tensors,
        parameters=found.parameters,
        runs=found.runs,
        peers=asked,
        folder=folder(found.folder, _needed(found.benchmark, size, large, asked)),
        json=found.json,
    )


def folder(asked: Path | None, needed: int) -> Path:
    """Where the files go: in memory where there is room. Raises SettingsError where there is none for them."""
    candidates = [asked] if asked else [_MEMORY, Path(tempfile.gettempdir())]
    rooms = {one: shutil.disk_usage(one).free for one in candidates if one.is_dir() and os.access(one, os.W_OK)}
    for one, room in rooms.items():
        if room > needed:
            return one
    found = ", ".join(f"{room / 1e6:.0f} MB in {one}" for one, room in rooms.items()) or "no such folder"
    raise SettingsError(f"--folder: expected room for {needed / 1e6:.0f} MB of files, found {found}")


def set_environment() -> None:
    """Prepare the environment for TensorFlow and Keras; to be called before they are imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Orbax brings jax, which would look for accelerators


def _needed(benchmark: str, size: int, large: int, peers: Collection[str]) -> int:
    """Bytes of files at one time: old and new versions, retired files, and what each peer keeps until it is removed."""
    if benchmark == "call":
        return 5 * size + _NETWORKS
    if benchmark == "restore":
        return (2 + len(peers)) * size + large
    return (16 if benchmark == "delta" else 8) * size


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures paramsync against a copy of the same bytes in memory and against its peers, by turns, "
        "in one run, on parameters that change from publication to publication.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument(
        "benchmark",
        choices=("publish", "restore", "delta", "call"),
        help="publish: write a version; restore: bring one in; delta: write one whose bytes are 95 %% those before; "
        "call: predict",
    )
    top.add_argument(
        "--mb", type=_megabytes, default=268.0, metavar="N",
        help="size of all parameters; call: of the embedding table (default 268)",
    )  # fmt: skip
    top.add_argument("--tensors", type=_count, default=32, metavar="N", help="how many parameters (default 32)")
    top.add_argument("--runs", type=_count, default=9, metavar="N", help="rounds that count (default 9)")
    top.add_argument(
        "--large-mb", type=_megabytes, default=1000.0, metavar="N",
        help="restore: the other size, to see that restoring does not depend on it (default 1000)",
    )  # fmt: skip
    top.add_argument(
        "--parameters", type=_networks, default=(6, 200, 1000), metavar="N,...",
        help="call: networks of so many parameters (default 6,200,1000)",
    )  # fmt: skip
    which = top.add_mutually_exclusive_group()
    which.add_argument(
        "--only", type=_peers, metavar="PEER,...",
        help=f"peers to measure, of {', '.join(PEERS)}; call: of {', '.join(CALLS)}",
    )  # fmt: skip
    which.add_argument("--no-peers", action="store_true", help="measure no peer")
    top.add_argument(
        "--folder", type=Path, metavar="DIR", help=f"where the files go (default {_MEMORY} where there is room)"
    )
    top.add_argument(
        "--json", metavar="PATH", help="write all figures as one JSON object; -: print it, and the table on stderr"
    )
    return top


def _megabytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected megabytes, more than 0, found {text!r}")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, found {text!r}")
    return int(text)


def _networks(text: str) -> tuple[int, ...]:
    """A layer has two parameters, a kernel and a bias."""
    found = tuple(_count(one) for one in text.split(","))
    if any(one % 2 for one in found):
        raise argparse.ArgumentTypeError(f"expected even numbers, found {text!r}")
    return found


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := sorted(set(names) - {*PEERS, *CALLS}):
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(PEERS)}, found {', '.join(map(repr, unknown))}")
    return tuple(one for one in (*PEERS, *CALLS) if one in names)
