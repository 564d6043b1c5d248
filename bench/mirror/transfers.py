"""Transfers to and from an object store, deltas, and how long a version takes through it."""

from __future__ import annotations

import json
import random
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore
from obstore.store import from_url

from bench import arrays, conditions
from bench.mirror.changing import NEVER, Changing, mirror, newest, wait
from bench.model import KEEP, WARM_UPS, Model
from bench.progress import Progress
from bench.settings import Settings
from bench.timing import Contestant, measure
from bench.training import MANUAL
from paramsync.checkpoint.tensor_bytes import PORTION
from paramsync.cli.programs import Child
from paramsync.host import memory
from paramsync.publishing.publisher import Publisher
from paramsync.remote import tensors
from paramsync.remote.bucket import Bucket
from paramsync.remote.bucket_status import stages
from paramsync.remote.child import MirrorChild
from paramsync.remote.download import Download
from paramsync.remote.trainer_watch import TrainerWatch
from paramsync.remote.upload import Upload
from paramsync.rpc.client import Credentials
from paramsync.store.store import Store

_SHARES = {"all": 1.0, "5_pct": 0.05, "1_pct": 0.01}  # the share of elements that change from version to version
_PART, _PARALLEL = 8 << 20, 8  # size and number of parallel parts are as in our transfers


def run(given: Settings, folder: Path) -> dict[str, Any]:
    """Measure whole versions and deltas in this process, then the freshness of single versions behind two mirrors."""
    memory.limit_heap()  # as mirrors do
    with Progress() as progress, ExitStack() as stack:
        source = stack.enter_context(closing(Changing(folder / "source", given.bytes, given.tensors)))
        address = f"{given.address}/{time.time_ns()}"
        mirrors: dict[str, Child] = {}
        own: dict[str, float] = {}

        def look(number: int) -> bool:
            """Return whether the version is there. Notes the memory of each mirror, without its mapped files."""
            for name, child in mirrors.items():
                kilobytes, _, _ = (conditions.line(f"/proc/{child.pid}/status", "RssAnon") or "0").partition(" ")
                own[f"memory_{name}_mb"] = max(own.get(f"memory_{name}_mb", 0), float(kilobytes) / 1e3)
            return newest(folder / "far") == number

        def arrive(share: float) -> float:
            """Return the milliseconds from the start of a publication until the second mirror has it."""
            version = source.change(share)
            wait(
                lambda: look(version.number), lambda: f"version {version.number}: {(folder / 'up').read_text()[-500:]}"
            )
            return (time.time() - version.step_done_at) * 1e3

        contestants = [Contestant(name="memcpy", run=arrays.memcpy(lambda: source.values))]
        contestants += _transfers(source, address, folder, stack)
        for name in ("5_pct", "1_pct"):
            contestants += _deltas(Store(folder / "source"), source, name)
        timings = measure(contestants, runs=given.runs, order=random.Random(0), track=progress.track)
        figures = timings.figures(
            upload_over_put=("ours_upload", "put"),
            download_over_get=("ours_download", "get"),
            **{f"{one.name[5:]}_over_memcpy": (one.name, "memcpy") for one in contestants[-4:]},
        )
        ends = [str(folder / "source"), f"{address}/live", str(folder / "far")]
        for name, (near, other) in ("up", ends[:2]), ("down", ends[1:]):
            mirrors[name] = mirror(stack, near, other, folder / name)
        arrive(1.0)  # not counted: it waits until both mirrors are running
        for name, share in _SHARES.items():
            rounds = [arrive(share) for _ in range(given.runs)]
            sent = json.loads((folder / "up").read_text().splitlines()[-1])
            figures["samples_ms"][f"ours_fresh_{name}"] = rounds
            figures[f"ours_fresh_{name}_ms"] = float(np.median(rounds))
            figures[f"sent_{name}"] = sent["bytes"] / sent["size"]
        rounds, figures["phases"] = _told(source, f"{address}/told", folder / "told", given.runs)
        figures["samples_ms"]["ours_fresh_told"], figures["ours_fresh_told_ms"] = rounds, float(np.median(rounds))
        return figures | {"plain_ms": figures["put_ms"] + figures["get_ms"]} | own


def _told(source: Changing, address: str, far: Path, runs: int) -> tuple[list[float], dict[str, float]]:
    """Return the milliseconds that each version takes if the trainer announces it, and the median of each stage.

    The mirror watches the trainer, as an inferencer with `--trainer` does. 1 % of the elements change in each version.
    """
    model, took = Model(source.values), list[dict[str, float]]()
    with ExitStack() as stack:
        publisher = stack.enter_context(Publisher(address, model, schedule=MANUAL, on_error="raise", control_port=0))
        child = MirrorChild(address, str(far), keep=KEEP)
        stack.callback(child.close)
        stack.enter_context(closing(TrainerWatch(publisher.control or "", Credentials(), child.look)))

        for step in range(WARM_UPS + runs):
            for variable, value in zip(model.parts, source.change_values(_SHARES["1_pct"]), strict=True):
                variable.assign(value)
            wait(partial(_is_copied, child, publisher.publish(step).number), lambda: child.reason)
            took.append(stages(child.status.copied))
    counted = took[WARM_UPS:]
    medians = {name: float(np.median([one[name] for one in counted])) * 1e3 for name in counted[0]}
    return [sum(one.values()) * 1e3 for one in counted], medians


def _is_copied(child: MirrorChild, number: int) -> bool:
    return child.status.copied is not None and child.status.copied.number == number


def _transfers(source: Changing, address: str, folder: Path, stack: ExitStack) -> list[Contestant]:
    """Return contestants that transfer a whole version, or the same bytes by obstore alone in equal parts."""
    plain, bucket = from_url(address), Bucket(f"{address}/ours")
    content = np.concatenate([array.reshape(-1) for array in source.values]).view(np.uint8)
    starts = range(0, len(content), _PART)
    ends = [*starts[1:], len(content)]
    download = Download(bucket, folder / "whole", keep=1, stop=NEVER)
    stack.callback(download.close)
    uploads: list[Upload] = []

    def start() -> None:
        source.change(0.0)
        uploads.append(Upload(Store(folder / "source"), bucket, keep=1, stop=NEVER))
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


def _deltas(store: Store, source: Changing, name: str) -> list[Contestant]:
    """Return two contestants: making one delta of a version, and applying it."""
    first, second = (store.open(source.change(share)) for share in (0.0, _SHARES[name]))
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
