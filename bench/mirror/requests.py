"""The requests of a publisher and a follower, their price for a day, and how fresh many followers are."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from bench import settings
from bench.mirror.changing import NEVER, Changing, Counting, mirror, wait
from bench.settings import Settings
from paramsync.cli.programs import Child
from paramsync.remote import copy_note
from paramsync.remote.bucket_status import Copied

_PORTION = 16  # the model has a 16th of the requested size, because each follower has its own store
_SHARE = 0.002  # the share of elements that change in a small version
_VERSIONS = 16  # versions for each number of followers; every eighth version has a longer delta
_SETTLED = 0.5  # seconds to wait for the longer delta, which is written after its version
_UNTIL_IDLE = 40.0  # seconds until a follower reads the state as rarely as it ever does
_LOOKS = 8  # reads of the state in a round, while no versions come
_FOLLOWERS = (1, 4, 16, 32)  # the numbers of followers, one for each round
_DAY, _EVERY = 86400.0, 10.0  # seconds of a day, and seconds from version to version during this day
_COLUMNS = {"LIST": ("LIST",), "state": ("STATE",), "GET": ("GET", "HEAD"), "PUT": ("PUT",), "parts": ("PART", "POST")}
_WRITES = ("PUT", "PART", "POST")
_DOLLARS = {"LIST": 5e-6, "state": 4e-7, "GET": 4e-7, "PUT": 5e-6, "parts": 5e-6}  # prices of S3 Standard in us-east-1


def run(given: Settings, folder: Path) -> dict[str, Any]:
    """Publish to more and more followers, then whole versions, then a version every 10 s, then nothing."""
    local, address = folder / "source", f"{given.address}/{time.time_ns()}"
    far: list[Path] = []
    followers: list[Child] = []
    freshness: list[dict[str, Any]] = []
    up, down = Counting(), Counting()
    with closing(Changing(local, given.bytes // _PORTION, given.tensors)) as source, up, down, ExitStack() as stack:
        with settings.through(up.endpoint):
            publisher = mirror(stack, local, address, folder / "up")

        def publish(share: float = _SHARE) -> tuple[Counter[str], list[float]]:
            """Publish a version. Returns the publisher's requests, and the milliseconds until each follower has it."""
            before, version = up.kinds.copy(), source.change(share)
            for path in far:  # one after the other: reading all notes every few milliseconds would slow the followers
                wait(partial(_has, path, version.number), path.with_suffix(".log").read_text)
            NEVER.wait(_SETTLED)
            return up.kinds - before, [(one.here_at - one.step_done_at) * 1e3 for one in map(_copied, far) if one]

        small: list[Counter[str]] = []
        for count in _FOLLOWERS[: given.runs]:
            with settings.through(settings.endpoint() if far else down.endpoint):
                for _ in range(len(far), count):
                    far.append(folder / f"far-{len(far)}")
                    followers.append(mirror(stack, address, far[-1], far[-1].with_suffix(".log")))
            publish()  # not counted: it waits until all programs are running
            began, ours = _seconds([publisher]), _seconds(followers)
            requests, arrivals = zip(*[publish() for _ in range(_VERSIONS)], strict=True)
            small += requests
            freshness.append(
                {
                    "followers": str(count),
                    "fresh ms": statistics.median([milliseconds for version in arrivals for milliseconds in version]),
                    "the last ms": statistics.median(map(max, arrivals)),
                    "publisher's writes": sum(counts[kind] for counts in requests for kind in _WRITES) / _VERSIONS,
                    "KB": statistics.fmean(_sent(folder / "up")[-_VERSIONS:]) / 1e3,
                    "processor ms": (_seconds([publisher]) - began) * 1e3 / _VERSIONS,
                    "a follower's ms": (_seconds(followers) - ours) * 1e3 / _VERSIONS / count,
                }
            )
        large = [publish(1.0)[0] for _ in range(given.runs)]
        before, began = down.kinds.copy(), time.monotonic()
        for number in range(1, given.runs + 1):
            publish()
            NEVER.wait(began + _EVERY * number - time.monotonic())
        busy = down.kinds - before
        NEVER.wait(_UNTIL_IDLE)
        idle = _rate(down, _LOOKS * given.runs)
    rows = [
        _row("publisher: a small version", sum(small, Counter()), len(small), _DAY / _EVERY),
        _row("publisher: a whole version", sum(large, Counter()), len(large), _DAY / _EVERY),
        _row("follower: a version every 10 s", busy, given.runs, _DAY / _EVERY),
        _row("follower: a second, no versions", {"STATE": idle}, 1, _DAY),
    ]
    most = max(counts["PUT"] for counts in small + large)
    return {"rows": {"requests": rows, "followers": freshness}, "most_puts": most}


def _copied(path: Path) -> Copied | None:
    note = copy_note.read(path)
    return None if note is None or note.status is None else note.status.copied


def _has(path: Path, number: int) -> bool:
    copied = _copied(path)
    return copied is not None and copied.number == number


def _sent(log: Path) -> list[int]:
    """Return the bytes of each version that a publisher sent, which depend on no other load of the machine."""
    return [line["bytes"] for line in map(json.loads, log.read_text().splitlines()) if "bytes" in line]


def _seconds(programs: Sequence[Child]) -> float:
    """Return the processor time of these processes, in seconds."""
    fields = [Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split() for one in programs]
    return sum(int(of[11]) + int(of[12]) for of in fields) / os.sysconf("SC_CLK_TCK")


def _rate(proxy: Counting, count: int) -> float:
    """Return how many times a second the follower reads the state, measured over `count` reads."""

    def wait_for_next() -> float:
        before = proxy.kinds["STATE"]
        wait(lambda: proxy.kinds["STATE"] > before, lambda: "a read of the state")
        return time.monotonic()

    times = [wait_for_next() for _ in range(count + 1)]
    return count / (times[-1] - times[0])


def _row(name: str, counts: Mapping[str, float], times: int, a_day: float) -> dict[str, Any]:
    each = {column: sum(counts.get(kind, 0) for kind in kinds) / times for column, kinds in _COLUMNS.items()}
    dollars = sum(_DOLLARS[column] * count for column, count in each.items())
    return {"": name, **each, "a day": f"{a_day * sum(each.values()):.0f}", "dollars a day": a_day * dollars}
