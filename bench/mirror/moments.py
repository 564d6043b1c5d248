"""How far apart replicas swap to a version that names a moment; each has its own process, mirror and store.

`python -m bench.mirror.moments ADDRESS DIR` is one replica, which answers requests all the time.
"""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.mirror.changing import NEVER, wait
from bench.publishing import INPUTS, Dense
from bench.settings import Settings
from paramsync import Follower, Publisher, Replica
from paramsync.cli.programs import Child
from paramsync.program.process import set_from_handler
from paramsync.publishing.schedule import PublishSchedule
from paramsync.remote.child import follow
from paramsync.status import EventKind

_PORTION = 256  # the model has a 256th of the requested size, because all replicas share the processors
_REPLICAS = (2, 4, 8, 16)  # by the number of rounds
_EVERY = 1.0  # seconds from version to version
_AFTER = 2.5  # seconds from the commit of a version to its moment; between two commits, whose copies take processors
_BOUND = 0.1  # seconds within which all replicas are to swap
_ASK = 0.05  # seconds between two requests of a replica
_ENDING = 120.0  # seconds that a replica on a busy machine may take to print its counts and end
_SLOWEST = 5  # versions that are listed one by one
Swap = dict[str, float]


def run(given: Settings, folder: Path) -> dict[str, Any]:
    """Publish a version a second, `--seconds` times in each round, and compare when the replicas swapped."""
    count = _REPLICAS[min(given.runs, len(_REPLICAS)) - 1]
    address = f"{given.address}/{time.time_ns()}"
    model = Dense(given.bytes // _PORTION)
    logs = [folder / f"replica-{at}.log" for at in range(count)]
    versions = max(1, round(given.seconds * given.runs))
    with ExitStack() as stack:
        publisher = Publisher(address, model, schedule=PublishSchedule(at_end=False), serve_after=_AFTER)
        stack.enter_context(publisher)
        _publish(publisher, model, 0)
        replicas = [Child("bench.mirror.moments", [address, str(log.with_suffix(""))], log=log) for log in logs]
        for replica in replicas:
            stack.callback(replica.wait, _ENDING)
        for replica in replicas:
            stack.callback(replica.end)
        for log in logs:
            wait(partial(_said, log), partial(log.read_text))
        due = time.monotonic()
        for number in range(1, versions + 1):
            due += _EVERY
            NEVER.wait(due - time.monotonic())
            _publish(publisher, model, number)
        for log in logs:
            wait(partial(_serves, log, versions), partial(log.read_text))
    return _figures([[json.loads(line) for line in _said(log)] for log in logs], versions)


def _publish(publisher: Publisher, model: Dense, number: int) -> None:
    model.bias.assign([float(number)] * model.bias.shape[0])
    publisher.publish(number)


def _said(log: Path) -> list[str]:
    whole, _, _ = log.read_text().rpartition("\n")  # the last line may be in the middle of its write
    return [line for line in whole.splitlines() if line.startswith("{")]


def _serves(log: Path, number: int) -> bool:
    return any(json.loads(line)["version"] == number for line in _said(log))


def _figures(said: list[list[Swap]], versions: int) -> dict[str, Any]:
    swaps: defaultdict[int, list[float]] = defaultdict(list)
    lateness: defaultdict[int, list[float]] = defaultdict(list)
    for line in itertools.chain.from_iterable(lines[:-1] for lines in said):
        swaps[int(line["version"])].append(line["at"])
        lateness[int(line["version"])].append(line["at"] - line["serve_at"])
    whole = {number: at for number, at in swaps.items() if number > 0 and len(at) == len(said)}
    spreads = {number: max(at) - min(at) for number, at in whole.items()}
    late = [seconds for number in whole for seconds in lateness[number]]
    ends = [lines[-1] for lines in said]
    row = {
        "replicas": str(len(said)),
        "versions": str(versions),
        "at all replicas": str(len(whole)),
        "within 100 ms %": 100 * sum(spread <= _BOUND for spread in spreads.values()) / versions,
        "apart p50 ms": 1e3 * statistics.median(spreads.values()),
        "p99 ms": 1e3 * _quantile(spreads.values(), 0.99),
        "late p50 ms": 1e3 * statistics.median(late),
        "late p99 ms": 1e3 * _quantile(late, 0.99),
        "early": str(sum(seconds < 0 for seconds in late)),
        **{name: str(int(sum(end[name] for end in ends))) for name in ("requests", "failed", "mixed")},
    }
    worst = sorted(spreads, key=lambda number: -spreads[number])[:_SLOWEST]
    return {"rows": {"moments": [row]}, "furthest_apart_ms": {number: 1e3 * spreads[number] for number in worst}}


def _quantile(values: Any, share: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


def main() -> None:
    address, folder = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: set_from_handler(ended))
    ended = threading.Event()
    counts = {"requests": 0, "failed": 0, "mixed": 0}
    owner = type("Owner", (), {})()
    replica = Replica("bench", follow(address, owner, Path(folder)))

    def tell() -> None:
        for event in events.take():
            line = {"version": event.version.number, "at": event.at, "serve_at": event.version.serve_at}
            sys.stdout.write(f"{json.dumps(line)}\n")
            sys.stdout.flush()

    with Follower(replica) as follower:
        events = follower.subscribe(tell, {EventKind.SWAPPED})
        follower.sync(timeout=4 * _ENDING)
        while not ended.wait(_ASK):
            counts["requests"] += 1
            try:
                outputs, version = replica.predict({"x": INPUTS["dense"]})
                counts["mixed"] += int(outputs["y"][0]) != version.step
            except Exception:  # noqa: BLE001, every kind of failure counts
                counts["failed"] += 1
    sys.stdout.write(f"{json.dumps(counts)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
