"""`python -m bench mirror`: transfers to and from an object store, deltas, and how long a version takes through it."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import obstore
from obstore.store import from_url

from bench import arrays, conditions
from bench.model import Model, Publications
from bench.progress import Progress
from bench.settings import Settings
from bench.timing import Contestant, measure
from paramsync.checkpoint.tensor_bytes import PORTION
from paramsync.cli.programs import Child
from paramsync.graphs.capturing import capture
from paramsync.host import memory
from paramsync.remote import tensors
from paramsync.remote.bucket import Bucket
from paramsync.remote.download import Download
from paramsync.remote.upload import Upload
from paramsync.store.store import Store
from paramsync.version import Version

_SHARES = {"all": 1.0, "5_pct": 0.05, "1_pct": 0.01}  # the share of elements that change from version to version
_PART, _PARALLEL, _PATIENCE = 8 << 20, 8, 60.0  # size and number of parallel parts are as in our transfers; seconds
_NEVER = threading.Event()


def run(given: Settings, folder: Path) -> dict[str, Any]:
    """Measure whole versions and deltas in this process, then the freshness of single versions behind two mirrors."""
    memory.limit_heap()  # as mirrors do
    with Progress() as progress, ExitStack() as stack:
        values, chance = arrays.random(arrays.shapes(given.bytes, given.tensors), seed=0), np.random.default_rng(1)
        graph = capture(Model([np.zeros((1, 1), np.float32)]))
        source = stack.enter_context(Publications(folder / "source", graph))
        address = f"{given.address}/{time.time_ns()}"
        mirrors: dict[str, Child] = {}
        own: dict[str, float] = {}

        def publish(share: float = 0.0) -> Version:
            for array in values if share else ():
                changed = chance.random(array.shape, np.float32) < share
                array[changed] *= 1 + 1e-3 * chance.random(int(changed.sum()), np.float32)
            return source.publish({f"part_{at:04}": array for at, array in enumerate(values)})

        def arrive(share: float) -> float:
            """Return the milliseconds from the start of a publication until the second mirror has it."""
            version = publish(share)
            while Store(folder / "far").latest() != version:
                _NEVER.wait(0.005)
                for name, child in mirrors.items():  # a mirror's own memory, without its mapped files
                    kilobytes, _, _ = (conditions.line(f"/proc/{child.pid}/status", "RssAnon") or "0").partition(" ")
                    own[f"memory_{name}_mb"] = max(own.get(f"memory_{name}_mb", 0), float(kilobytes) / 1e3)
                if time.time() > version.step_done_at + _PATIENCE:
                    raise TimeoutError(f"version {version.number} did not arrive: {(folder / 'up').read_text()[-500:]}")
            return (time.time() - version.step_done_at) * 1e3

        contestants = [Contestant(name="memcpy", run=arrays.memcpy(lambda: values))]
        contestants += _transfers(values, publish, address, folder, stack)
        for name in ("5_pct", "1_pct"):
            contestants += _deltas(Store(folder / "source"), publish, name)
        timings = measure(contestants, runs=given.runs, order=random.Random(0), track=progress.track)
        figures = timings.figures(
            upload_over_put=("ours_upload", "put"),
            download_over_get=("ours_download", "get"),
            **{f"{one.name[5:]}_over_memcpy": (one.name, "memcpy") for one in contestants[-4:]},
        )
        ends = [str(folder / "source"), f"{address}/live", str(folder / "far")]
        for name, way in ("up", ends[:2]), ("down", ends[1:]):
            mirrors[name] = Child("paramsync.cli", ["mirror", *way, "--json"], log=folder / name)
            stack.callback(mirrors[name].wait, _PATIENCE)
            stack.callback(mirrors[name].end)
        arrive(1.0)  # not counted: it waits until both mirrors are running
        for name, share in _SHARES.items():
            rounds = [arrive(share) for _ in range(given.runs)]
            sent = json.loads((folder / "up").read_text().splitlines()[-1])
            figures["samples_ms"][f"ours_fresh_{name}"] = rounds
            figures[f"ours_fresh_{name}_ms"] = float(np.median(rounds))
            figures[f"sent_{name}"] = sent["bytes"] / sent["size"]
        return figures | {"plain_ms": figures["put_ms"] + figures["get_ms"]} | own


def _transfers(values: Any, publish: Any, address: str, folder: Path, stack: ExitStack) -> list[Contestant]:
    """Return contestants that transfer a whole version, or the same bytes by obstore alone in equal parts."""
    plain, bucket = from_url(address), Bucket(f"{address}/ours")
    content = np.concatenate([array.reshape(-1) for array in values]).view(np.uint8)
    starts = range(0, len(content), _PART)
    ends = [*starts[1:], len(content)]
    download = Download(bucket, folder / "whole", keep=1, stop=_NEVER)
    stack.callback(download.close)
    uploads: list[Upload] = []

    def start() -> None:
        publish()
        uploads.append(Upload(Store(folder / "source"), bucket, keep=1, stop=_NEVER))
        uploads[-1].start()  # not timed: probing a server may take seconds

    def renew() -> None:
        start()
        uploads.pop().run_once()

    def put(name: str) -> None:
        obstore.put(plain, name, content.data, chunk_size=_PART, max_concurrency=_PARALLEL)

    put("got")
    return [
        Contestant(name="put", run=lambda: put("put"), clear=lambda: obstore.delete(plain, "put")),
        Contestant(name="get", run=lambda: obstore.get_ranges(plain, "got", starts=starts, ends=ends)),
        Contestant(name="ours_upload", prepare=start, run=lambda: uploads.pop().run_once()),
        Contestant(name="ours_download", prepare=renew, run=download.run_once),
    ]


def _deltas(store: Store, publish: Any, name: str) -> list[Contestant]:
    """Return two contestants: making one delta of a version, and applying it."""
    first, second = (store.open(publish(share)) for share in (0.0, _SHARES[name]))
    old, new = [{key: array.copy() for key, array in tensors.contents(bundle).items()} for bundle in (first, second)]
    made = memoryview(b"".join([content for _, content in tensors.difference(first.entries, old, new)]))
    places = {key: array.copy() for key, array in old.items()}

    def apply() -> None:
        blocks = tensors.blocks(first.entries, made)
        for key, place in places.items():
            for start in range(0, len(place), PORTION):
                part = slice(start, start + PORTION)
                tensors.advance(first.entries[key], blocks[key], start, old[key][part], place[part])

    return [
        Contestant(name=f"ours_make_{name}", run=lambda: list(tensors.difference(first.entries, old, new))),
        Contestant(name=f"ours_apply_{name}", run=apply),
    ]
