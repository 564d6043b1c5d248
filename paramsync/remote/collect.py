"""Finds and deletes the objects of a bucket that no version needs, for an operator: publishers do so as they go."""

from __future__ import annotations

import re
from collections.abc import Iterable

from paramsync.remote.bucket import Bucket
from paramsync.remote.state import State

KINDS = ("data", "deltas", "graphs", "versions")  # of objects
RUN = 8  # letters of the run's identity in a name, by which an object of ours differs from anybody else's


def list_unnamed(bucket: Bucket, state: State) -> dict[str, int]:
    """The objects, with their sizes, that earlier publishers of this run wrote and that the state does not name.

    No state will ever name these objects: their publishers are fenced off, and other publishers make names with another
    epoch. Objects of the current epoch may be on the way into the state.
    """
    ours = re.compile(rf"({'|'.join(KINDS)})/(\d+)/{state.run[:RUN]}-[\d.a-z-]+")
    named = state.live.union(state.condemned)
    return {
        name: size
        for kind in KINDS
        for name, size in bucket.sizes(f"{kind}/").items()
        if (found := ours.fullmatch(name)) and int(found[2]) < state.epoch and name not in named
    }


def delete(bucket: Bucket, names: Iterable[str]) -> list[str]:
    """Delete those of the names that no version needs now. Returns the deleted names.

    The state is read again. A name that was condemned or unnamed when the state was read before stays so: publishers
    never use a name again. So this is safe beside a publisher, and writes no state: the next publisher forgets the
    condemned names.
    """
    live = bucket.state().live
    deleted = []
    for name in names:
        if name not in live:
            bucket.delete(name)
            deleted.append(name)
    return deleted
