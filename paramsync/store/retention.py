"""Which versions stay in a store: the newest, and older ones by their age. Pure: the time comes in as an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paramsync.errors import SettingsError

MOST_BY_AGE = 1000  # versions that stay for their age: each look at the store and each publication reads their names


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The `keep` newest versions stay. With `keep_for`, older ones stay for as many seconds after their publication;
    with `keep_every`, of these only the first of each period of as many seconds, such as one an hour for a day:

        Retention(keep=5, keep_for=86400, keep_every=3600)

    Raises SettingsError for what cannot be meant.
    """

    keep: int = 5
    keep_for: float | None = None
    keep_every: float | None = None

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise SettingsError(f"keep: expected at least 1 version, found {self.keep}")
        if self.keep_for is not None and not self.keep_for > 0:
            raise SettingsError(f"keep_for: expected seconds above 0, found {self.keep_for}")
        if self.keep_every is not None and not self.keep_every > 0:
            raise SettingsError(f"keep_every: expected seconds above 0, found {self.keep_every}")
        if self.keep_every is not None and self.keep_for is None:
            raise SettingsError(f"keep_every: expected keep_for with it, found {self.keep_every} alone")

    def dropped(self, versions: Sequence[tuple[str, float]], *, now: float) -> set[str]:
        """The names that go as one more version is published now; `versions` are names and times, oldest first.

        A time as far in the future as `keep_for` reaches into the past is that of a clock that was wrong.
        """
        older = versions[: max(0, len(versions) + 1 - self.keep)]
        stay: dict[int, str] = {}
        for at, (name, committed_at) in enumerate(older):
            if self.keep_for is not None and abs(now - committed_at) <= self.keep_for:
                stay.setdefault(at if self.keep_every is None else int(committed_at // self.keep_every), name)
        return {name for name, _ in older}.difference([*stay.values()][-MOST_BY_AGE:])
