"""How many bytes a follower fetches if it is some versions behind, or has no version. A proxy counts the bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from bench import settings
from bench.mirror.changing import NEVER, Changing, Counting
from bench.settings import Settings
from paramsync.checkpoint.reader import Bundle
from paramsync.remote import tensors
from paramsync.remote.bucket import Bucket
from paramsync.remote.download import Download
from paramsync.remote.upload import Upload
from paramsync.store.store import Store

_BEHIND = (1, 10, 100)
_SHARES = (0.001, 0.01, 0.05)  # the share of elements that change from version to version
_PORTION = 8  # the model has an eighth of the requested size, because hundreds of versions are published
_FURTHER = 13  # versions between two rounds, so that rounds begin at different places between two long deltas
# The most bytes to fetch: relative to a whole version, to the direct delta, and to a whole version if there is none.
_WHOLE, _DIRECT, _COLD = 1.05, 1.3, 1.5


def run(given: Settings, folder: Path) -> dict[str, Any]:
    """In each round, followers fetch the same newest version. Each row has the figures of the worst round."""
    rows: list[dict[str, Any]] = []
    for share in _SHARES:
        worst: dict[str, dict[str, Any]] = {}
        for row in _fetches(share, given, folder / str(share)):
            before = worst.get(row["behind"], row)
            worst[row["behind"]] = max(before, row, key=lambda fetched: float(fetched["of the most"]))
        rows += [{"changed %": f"{100 * share:g}", **row} for row in worst.values()]
    return {"rows": {"behind": rows}}


def _fetches(share: float, given: Settings, folder: Path) -> Iterator[dict[str, Any]]:
    ends = [max(_BEHIND) + _FURTHER * number for number in range(given.runs)]
    address, path = f"{given.address}/{time.time_ns()}", folder / "source"
    upload = Upload(Store(path), Bucket(address), keep=5, stop=NEVER)
    waiting: dict[int, list[_Follower]] = {end: [] for end in ends}
    proxy = Counting()
    with closing(Changing(path, given.bytes // _PORTION, given.tensors)) as source, proxy:
        for number in range(ends[-1] + 1):
            source.change(share)
            upload.run_once()
            for end in [end for end in ends if end - number in (*_BEHIND, 0)]:
                with settings.through(proxy.endpoint):
                    waiting[end].append(_Follower(address, folder / f"{number}-{end}", proxy, end - number))
            for follower in waiting.get(number, ()):
                yield follower.fetch()


class _Follower:
    """A follower that fetches the newest version at once. Its method `fetch` is called `behind` versions later.

    If `behind` is 0, the follower fetches nothing at first.
    """

    def __init__(self, address: str, path: Path, proxy: Counting, behind: int) -> None:
        self._store, self._proxy, self._behind = Store(path), proxy, behind
        self._download = Download(Bucket(address), path, keep=2, stop=NEVER)
        self._old = self._fetch()[1] if behind else None

    def fetch(self) -> dict[str, Any]:
        begun = len(self._proxy.sizes)
        size, new = self._fetch()
        fetched, direct, most = sum(self._proxy.sizes[begun:]), 0, _COLD * size
        if self._old is not None:
            old, contents = tensors.contents(self._old), tensors.contents(new)
            direct = sum(len(content) for _, content in tensors.difference(new.entries, old, contents))
            most = min(_WHOLE * size, _DIRECT * direct)
        self._download.close()
        shares = {"fetched %": 100 * fetched / size, "direct delta %": 100 * direct / size}
        return {"behind": str(self._behind or "all"), **shares, "of the most": fetched / most}

    def _fetch(self) -> tuple[int, Bundle]:
        """Fetch the newest version. Returns its size and the version."""
        done = self._download.run_once()
        assert done is not None
        return done.size, self._store.open(done.version)
