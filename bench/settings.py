"""What was said to a benchmark, and the environment it gives to TensorFlow. Imports nothing that takes time."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.options import BENCHMARKS, MEMORY, parser
from paramsync.errors import SettingsError

NOT_ASKED_FOR = "not asked for"

_NETWORKS = 100 << 20  # bytes of the SavedModels of all networks but the embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One benchmark and its size. `peers` are those asked for, installed or not; `folder` is where the files go.

    What a benchmark has no option for is left as it is here. `parameters` are the numbers of parameters of the networks
    that are called; `sizes`, in bytes, those of the networks that are trained, on `device`, for `seconds` at a time;
    `frozen` is how many percent of the parameters do not change; `load` is the share that is asked of a server of what
    it can answer while versions are published; `cache` is where peers are installed; with `merge`, figures are added to
    those in the file `json`.
    """

    benchmark: str
    bytes: int
    runs: int
    peers: tuple[str, ...]
    folder: Path
    json: str | None
    large_bytes: int = 0
    tensors: int = 0
    frozen: int = 0
    parameters: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    seconds: float = 0.0
    swaps: int = 0
    load: float = 0.0
    device: str = "cpu"
    cache: Path = Path()
    merge: bool = False


def parse(argv: Sequence[str]) -> Settings:
    """Raises SettingsError; wrong arguments end the program as argparse does."""
    said = vars(parser().parse_args(argv))
    only, no_peers = said.pop("only"), said.pop("no_peers")
    peers = () if no_peers else only or BENCHMARKS[said["benchmark"]].peers
    asked = said.pop("folder")
    if "sizes" in said:
        said["sizes"] = tuple(dict.fromkeys((*said["sizes"], said["bytes"])))
    settings = Settings(**said, peers=peers, folder=asked or MEMORY)
    if settings.bytes < settings.tensors * 1024:
        found = f"{settings.bytes / 1e6:g}"
        raise SettingsError(f"--mb {found}: expected at least 1 KiB for each of {settings.tensors} tensors")
    if settings.json not in (None, "-") and not Path(settings.json).parent.is_dir():
        raise SettingsError(f"--json {settings.json}: expected a file in a folder that is there")
    return replace(settings, folder=folder(asked, _needed(settings)))


def folder(asked: Path | None, needed: int) -> Path:
    """Where the files go: in memory where there is room. Raises SettingsError where there is none for them."""
    candidates = [asked] if asked else [MEMORY, Path(tempfile.gettempdir())]
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


def environment_of_peers() -> dict[str, str]:
    """For processes of other systems: nothing of ours, and one thread for each product of matrices."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _needed(settings: Settings) -> int:
    """Bytes of files at one time: old and new versions, retired files, and what each peer keeps until it is removed."""
    size, peers = settings.bytes, len(settings.peers)
    return {
        "call": 5 * size + _NETWORKS,
        "stall": (5 + 3 * peers) * max(settings.sizes, default=0),
        "freshness": (10 + 4 * peers) * size,
        "swap": (10 + 4 * peers) * size,
        "peers": (12 + 8 * peers) * size,
        "restore": (2 + peers) * size + settings.large_bytes,
        "delta": 16 * size,
    }.get(settings.benchmark, 8 * size)
