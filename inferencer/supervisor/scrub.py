"""Scrub: compares the versions in memory with their checksums, again and again. It does not depend on followers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import replace
from threading import Event
from weakref import WeakSet

from paramsync.errors import CorruptCheckpointError, UnreadableError

from ..serving.counts import Scrubbed
from .shared import SharedVersion

_log = logging.getLogger("paramsync.supervisor")
SHARE = 0.02  # the largest share of one processor that a scrub takes
BETWEEN_SECONDS = 60.0  # the shortest time from the start of a scrub to the start of the next
_MARKS = 10_000  # most marks of tensors already read; above this number, marks of freed versions are dropped


class Scrub:
    """One thread calls `run_once` and pauses; any thread may read `scrubbed`.

    A tensor that several versions share is read once in each scrub, even if versions come and go faster than they can
    be read. A version that is freed meanwhile is kept only until the portion in progress is read.
    """

    def __init__(
        self,
        versions: Callable[[], Collection[SharedVersion]],
        suspect: Callable[[SharedVersion], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`versions` returns the versions in memory now; `suspect` is called with a damaged version."""
        self._versions = versions
        self._suspect = suspect
        self._clock = clock
        self.scrubbed = Scrubbed()
        self._portions: Iterator[int] = iter(())
        self._begins_at = clock()

    def run(self, ended: Event) -> None:
        """Scrub until `ended` is set."""
        pause = 0.0
        while not ended.wait(pause):
            try:
                pause = self.run_once()
            except Exception:  # noqa: BLE001, an error must not end scrubbing
                _log.exception("the scrub begins anew after an error of its own")
                self._portions, pause = iter(()), BETWEEN_SECONDS

    def run_once(self) -> float:
        """Read the next portion. Returns the seconds to pause, so that the scrub keeps to its share of a processor."""
        began = self._clock()
        size = next(self._portions, None)
        if size is None:
            if began < self._begins_at:
                return self._begins_at - began
            self._begins_at = began + BETWEEN_SECONDS
            self._portions = self._scrub()
            return 0.0
        self.scrubbed = replace(self.scrubbed, bytes=self.scrubbed.bytes + size)
        return (self._clock() - began) * (1 / SHARE - 1)

    def _scrub(self) -> Iterator[int]:
        """Read every version in memory once."""
        done: set[object] = set()
        most, through = _MARKS, WeakSet[SharedVersion]()
        while (version := next((one for one in self._versions() if one not in through), None)) is not None:
            for name in version.keys:
                if (mark := _mark(version, name)) in done:
                    continue
                if not (yield from self._tensor(version, name)):
                    break
                done.add(mark)
            else:
                through.add(version)
            if len(done) > most:  # drop the marks of freed versions, which would pile up
                done &= {_mark(version, name) for version in self._versions() for name in version.keys}
                most = _MARKS + 2 * len(done)
        self.scrubbed = replace(self.scrubbed, at=time.time())

    def _is_there(self, version: SharedVersion) -> bool:
        return any(version is other for other in self._versions())

    def _tensor(self, version: SharedVersion, name: str) -> Generator[int, None, bool]:
        """Read a tensor. Returns False if its version was freed meanwhile, otherwise True, even if it is damaged."""
        assert version.held is not None
        try:
            for size in version.held.scrub(name):
                yield size
                if not self._is_there(version):
                    return False
        except CorruptCheckpointError:
            self._suspect(version)  # the follower verifies the version again, and reports the damage
        except UnreadableError as error:
            _log.debug("version %d cannot be scrubbed now: %s", version.version.number, error)
        return True


def _mark(version: SharedVersion, name: str) -> object:
    """Return an identity of a tensor's bytes, made of their places in files."""
    assert version.held is not None
    return tuple(version.held.marks(name))
