"""The models of one server by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from inferencer.follower import Follower
from paramsync.errors import UnknownModelError


class Models:
    """Immutable. Iterates over the followers."""

    def __init__(self, followers: Iterable[Follower]) -> None:
        self._followers = {one.model: one for one in followers}

    def __iter__(self) -> Iterator[Follower]:
        return iter(self._followers.values())

    def find(self, model: str) -> Follower:
        """Raises UnknownModelError."""
        if model not in self._followers:
            raise UnknownModelError(model, self._followers)
        return self._followers[model]

    def only(self, model: str) -> Follower:
        """The same, where a server of one model need not be told its name."""
        return next(iter(self)) if not model and len(self._followers) == 1 else self.find(model)

    def some(self, model: str) -> list[Follower]:
        """The one of that name; all where none is named."""
        return [self.find(model)] if model else list(self)
