"""The models of one server by name, and how they become other ones while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from inferencer.follower import Follower
from inferencer.following.status import State
from inferencer.served import Maker, Served, followers_of
from inferencer.services.aside import aside
from inferencer.settings import AnySettings, check_models
from paramsync.errors import NotServingError, RequestError, SyncError, UnknownModelError

_SECONDS = 50.0  # for a first look, with what is restored then; less than a whole configuration may take


class Models:
    """Iterates over what is served. Lives on one event loop, but for `find`, which any thread may call.

    The table is replaced as a whole: whoever has found something keeps what he has found.
    """

    def __init__(self, models: Sequence[AnySettings], maker: Maker) -> None:
        """Raises ParamsyncError where one of them cannot be made."""
        self._maker = maker
        self._served: Mapping[str, Served] = maker.make(models, {})
        self._awaited = [*self._served.values()]
        self._changes: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self._draining = False
        self.changed = asyncio.Event()
        """Set once there are other models; the next change sets another event."""

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def find(self, model: str) -> Served:
        """Raises UnknownModelError."""
        served = self._served
        if model not in served:
            raise UnknownModelError(model, served)
        return served[model]

    def batched(self, model: str) -> bool:
        """Whether requests of this model that wait together may go in one call."""
        served = self._served.get(model)
        return served is None or served.batched

    def some(self, model: str) -> list[Served]:
        """The one of that name; all where none is named. Raises UnknownModelError."""
        return [self.find(model)] if model else list(self)

    def followers(self, model: str = "") -> list[Follower]:
        """Those of one model, or of all, each once. Raises UnknownModelError."""
        return followers_of(self.some(model))

    def follower(self, model: str) -> Follower:
        """The one to be told what to do; a server of one model need not be told its name.

        Raises UnknownModelError, and RequestError for a model that is joined from others.
        """
        if not model and len(self._served) == 1:
            model = next(iter(self._served))
        followers = self.find(model).followers
        if len(followers) > 1:
            parts = " and ".join(one.model for one in followers)
            raise RequestError(f"model {model!r}: expected one with a store, found one joined from {parts}: name these")
        return followers[0]

    def missing(self) -> list[str]:
        """Of the models that were there from the start those that do not serve, or not yet.

        One that is added later and has nothing to serve takes nothing away from callers of the others.
        """
        return [one.name for one in self._awaited if one.status().state is not State.SERVING]

    async def apply(self, models: Sequence[AnySettings]) -> None:
        """Serve these from now on, and nothing else. Returns when all that are new serve, or have nothing to serve yet.

        1. Where what is said is wrong, nothing changes.
        2. New ones look at their stores, and restore what they find, aside.
        3. One assignment: from here on requests find the new ones, and the others no more; watchers are told.
        4. The others are followed no more, and let go of when no request holds them.

        A model of which nothing is said that was not said before stays what it is. Once begun it goes on to the end,
        whether its caller stays or not. Raises SettingsError, StoreError, SyncError where a first look takes too long,
        and NotServingError once draining.
        """
        change = asyncio.ensure_future(self._apply(tuple(models)))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        await asyncio.shield(change)

    async def _apply(self, models: Sequence[AnySettings]) -> None:
        async with self._changing:
            before = self._served
            known = [one.settings for one in before.values()]
            await aside(partial(check_models, models, known=known), "a look at the stores of new models")
            served = await aside(partial(self._maker.make, models, before), "what was kept of new models")
            added = [one for one in followers_of(served.values()) if one not in followers_of(before.values())]
            late = await _begun(added)
            if self._draining:
                self._maker.end(served.values(), kept=before.values())
                raise NotServingError(", ".join(served), "the server is stopping")
            if late:
                self._maker.end(served.values(), kept=before.values())
                names = ", ".join(one.model for one in late)
                raise SyncError(f"{names}: the newest version was not restored within {_SECONDS:g} s; nothing changed")
            self._served = served
            self._awaited = [served[one.name] for one in self._awaited if _is_there(one, served)]
            changed, self.changed = self.changed, asyncio.Event()
            changed.set()
            self._maker.end(before.values(), kept=served.values())

    def start(self) -> None:
        """Follow every store."""
        for one in self.followers():
            one.start()

    def drain(self) -> None:
        """Nothing more is restored, what is asked of a follower is refused, and what serves goes on serving."""
        self._draining = True
        for one in self.followers():
            one.drain()

    async def close(self) -> None:
        """End every follower, after the restore it may be at."""
        await asyncio.gather(*(asyncio.to_thread(one.close) for one in self.followers()))


async def _begun(added: Sequence[Follower]) -> list[Follower]:
    """Has them follow their stores. Returns those that were not done with their first look in time.

    They look on their own threads: one that never comes back, from a directory that hangs or a graph that does not end,
    keeps neither the next change nor the end of the process waiting.
    """
    for one in added:
        one.start()
    looks = [asyncio.wrap_future(one.looked) for one in added]
    if looks:
        await asyncio.wait(looks, timeout=_SECONDS)
    return [one for one in added if not one.looked.done()]


def _is_there(one: Served, served: Mapping[str, Served]) -> bool:
    return one.name in served and served[one.name].followers == one.followers
