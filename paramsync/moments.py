"""Says when versions are to serve, by the moments in their records and by operators' orders to all followers.

An order is a `Move`. Pure: reads no clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paramsync.version import Version

LATEST_MOMENT = 3600.0
"""Followers wait at most so many seconds. A moment that is further ahead comes from a wrong clock: they do not wait."""

_LIMIT = 1 << 63
_CLOCK_SECONDS = 2.0  # a smaller difference between two clocks is not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An operator's order to all followers to change their version at one moment.

    at        the moment, in seconds since the epoch
    before    the version that is pinned until then; None: the newest is followed
    newest    the newest version when the order was given
    sync      whether the newest version serves at the moment of this order, even if its own moment is later
    """

    at: float
    before: int | None = None
    newest: int
    sync: bool = False

    def moment_of(self, version: Version) -> float | None:
        """Return when the version is to serve; None if it is to serve at once.

        A version that was published after the order serves at its own moment. If it has none, it serves at the order's
        moment.
        """
        own = version.serve_at
        if version.number > self.newest:
            return self.at if own is None else own
        if self.sync and version.number == self.newest:
            return self.at if own is None else min(own, self.at)
        return own


def from_values(values: Any) -> Move:
    """Read a move from the values that `asdict` made. Raises ValueError."""
    if not isinstance(values, Mapping):
        raise ValueError(f"move: expected fields by name, found {type(values).__name__}")
    at, before, newest, sync = (values.get(name) for name in ("at", "before", "newest", "sync"))
    numbers = [number for number in (newest, before) if isinstance(number, int) and 0 <= number < _LIMIT]
    are_numbers = len(numbers) == 2 - (before is None)
    if not (are_numbers and isinstance(at, int | float) and 0 <= at < _LIMIT and isinstance(sync, bool)):
        raise ValueError(f"move: expected at, before, newest and sync, found {dict(values)!r:.200}")
    return Move(at=float(at), before=before, newest=numbers[0], sync=sync)


def wrong_clock(bucket: tuple[float, float], host: tuple[float, float], whose: str = "this host") -> str:
    """Return a text that says how wrong a host's clock is; "" if it is not known to be wrong.

    An object was written when the bucket's clock said a time in the interval `bucket`, and when the host's clock said
    a time in the interval `host`.
    """
    ahead = min(0.0, host[1] - bucket[0]) or max(0.0, host[0] - bucket[1])
    if abs(ahead) <= _CLOCK_SECONDS:
        return ""
    where = "ahead of" if ahead > 0 else "behind"
    return f"the clock of {whose} is {abs(ahead):.0f} s or more {where} the bucket's: set it"


def too_far(version: Version, now: float) -> str:
    """Return a text if the moment of a version is too far ahead to wait for it; otherwise ""."""
    if version.serve_at is None or version.serve_at - now <= LATEST_MOMENT:
        return ""
    wrong = "so the clock of this machine or of its publisher is wrong"
    return f"version {version.number} serves at once: its moment is more than an hour ahead, {wrong}"


class Moments:
    """The moments of one model that are still to come. Belongs to one thread.

    Methods take the time of two clocks: `now` in seconds since the epoch, and `monotonic` of the monotonic clock. If
    the first clock is set back, no wait becomes longer, because the monotonic clock limits each wait, too.
    """

    def __init__(self) -> None:
        self.move: Move | None = None
        """The last move of all followers."""
        self.coming: Mapping[int | None, float] = {}
        """The moments still to come at the last `update`, by version number. The move's moment has the key None."""
        self._ends: dict[float, float] = {}  # by moment: the end of its wait on the monotonic clock

    def of(self, version: Version) -> float | None:
        """Return when the version is to serve; None if it need not wait."""
        return version.serve_at if self.move is None else self.move.moment_of(version)

    def update(self, versions: Iterable[Version], now: float, monotonic: float) -> None:
        """Note which moments of these versions, and of the move, are to come.

        If several versions have the same number, the last of them counts.
        """
        moments = {version.number: self.of(version) for version in versions}
        known: dict[int | None, float] = {number: at for number, at in moments.items() if at is not None}
        if self.move is not None:
            known[None] = self.move.at
        self._ends = {at: self._ends.get(at, monotonic + at - now) for at in known.values()}
        self.coming = {number: at for number, at in known.items() if self._left(at, now, monotonic)}

    def left(self, now: float, monotonic: float, *, only: Container[int | None] | None = None) -> float | None:
        """Return the seconds until the first moment to come; None if there is none. `only` selects version numbers."""
        moments = [at for number, at in self.coming.items() if only is None or number in only]
        return min((self._left(at, now, monotonic) for at in moments), default=None)

    def _left(self, moment: float, now: float, monotonic: float) -> float:
        if moment - now > LATEST_MOMENT:
            return 0.0
        return max(0.0, min(moment - now, self._ends[moment] - monotonic))
