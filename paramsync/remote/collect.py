"""Finds and deletes objects of a bucket that no version needs, for operators. Publishers do so while they publish."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paramsync.errors import FencedError, RemoteError
from paramsync.remote import fleet, protocol
from paramsync.remote.bucket import Bucket, Stored, asked_once
from paramsync.remote.state import State

_NUMBER = "[0-9]{1,19}"
FORMS = {
    "data": _NUMBER,
    "deltas": f"{_NUMBER}-{_NUMBER}",
    "graphs": rf"{_NUMBER}\.pb",
    "versions": rf"{_NUMBER}\.json",
}
"""The kinds of objects, and the pattern of what follows `KIND/EPOCH/RUN-` in their names."""

RUN = 8  # names contain the first RUN letters of the run's identity, which mark objects as ours
MOST_CONDEMNED = 512  # most condemned names that we put into a state


@dataclass(frozen=True, slots=True, kw_only=True)
class Unneeded:
    """An object that no version needs.

    A `condemned` object is named by the state, because followers may still read it. All other unneeded objects are
    orphans: a publisher that was killed wrote them, and no state names them.
    """

    name: str
    bytes: int
    written_at: float
    condemned: bool


def list_unneeded(bucket: Bucket, state: State) -> list[Unneeded]:
    """Return the condemned objects that still exist, and the orphans. Raises RemoteError if they cannot be listed."""
    with asked_once():
        there = _list(bucket)
    orphans = orphans_among(there, state)
    names = [*(name for name in state.condemned if name in there), *sorted(orphans)]
    return [
        Unneeded(name=name, bytes=there[name].size, written_at=there[name].written_at, condemned=name not in orphans)
        for name in names
    ]


def list_orphans(bucket: Bucket, state: State) -> frozenset[str]:
    """Return the names of the orphans. Raises RemoteError, ConnectionError."""
    return orphans_among(_list(bucket), state)


def _list(bucket: Bucket) -> dict[str, Stored]:
    return {name: found for kind in FORMS for name, found in bucket.objects(f"{kind}/").items()}


def orphans_among(names: Iterable[str], state: State) -> frozenset[str]:
    """Return the names that earlier publishers of this run made and that the state does not contain.

    No later state will contain them: their publishers are fenced off, and each publisher makes names with its own
    epoch. Names of the current epoch are left out, because the next state may contain them. Objects with other names
    may belong to somebody else.
    """
    forms = [f"{kind}/{_NUMBER}/{state.run[:RUN]}-{form}" for kind, form in FORMS.items()]
    ours = re.compile("|".join(forms))
    earlier = {name for name in names if ours.fullmatch(name) and int(name.split("/")[1]) < state.epoch}
    return frozenset(earlier - state.live.union(state.condemned))


def delete(bucket: Bucket, state: State, unneeded: list[Unneeded], wait: Callable[[], object]) -> list[Unneeded]:
    """Delete objects that no version needed in this state. Returns the deleted objects. A publisher may be running.

    The steps are those of a publisher: condemn the orphans by compare-and-swap, wait, read the state again, delete only
    the names that it still condemns, and take the deleted names out of it. Raises RemoteError, also if another
    publisher begins meanwhile.
    """
    rest = [*state.condemned, *(found.name for found in unneeded if not found.condemned)]
    deleted: set[str] = set()
    while rest:
        names, rest = frozenset(rest[:MOST_CONDEMNED]), rest[MOST_CONDEMNED:]
        held = fleet.perform(bucket, protocol.condemn(secrets.token_hex(16), add=names.difference(state.condemned)))
        if (held.state.run, held.state.epoch) != (state.run, state.epoch):
            raise _begun(bucket)
        wait()
        try:
            gone = fleet.perform(bucket, protocol.sweep(held, names))
        except FencedError as error:
            raise _begun(bucket) from error
        why = bucket.last_error
        fleet.perform(bucket, protocol.condemn(secrets.token_hex(16), remove=gone))
        deleted |= gone
        if why:
            raise RemoteError(f"{bucket.address} does not answer: {why}; {len(deleted)} objects are deleted: try again")
    return [found for found in unneeded if found.name in deleted]


def _begun(bucket: Bucket) -> RemoteError:
    return RemoteError(f"{bucket.address}: another publisher has begun meanwhile: try again")
