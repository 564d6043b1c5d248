"""The models of one server by name. They may change while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from paramsync.errors import NotServingError, SyncError, UnknownModelError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.pins_file import Change
from paramsync.status import State, nothing_serves

from ..serving.call_with_timeout import aside
from ..serving.served import follower_of
from ..settings.settings import AnySettings, ModelSettings, check_models
from .maker import FollowedModel, Maker, followers_of

_SECONDS = 50.0  # limit for a first look at a store and the restores after it
_SECONDS_TO_CHOOSE = 10.0  # limit for setting pins and labels: a follower that takes longer waits for its file system


class Registry:
    """The table of models. Lives on one event loop, but any thread may look up models and followers.

    The table is replaced as a whole. A model that `find` has returned stays valid.
    """

    def __init__(self, models: Sequence[AnySettings], maker: Maker) -> None:
        """Raises ParamsyncError if a model cannot be made."""
        self._maker = maker
        self._served: Mapping[str, FollowedModel] = maker.make(models, {})
        self._awaited = [*self._served.values()]
        self._changes: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self._draining = False
        self.trouble: Callable[[], str] = lambda: ""
        """Returns what is wrong with the workers; empty if nothing is."""
        self.changed = asyncio.Event()
        """Set when the models change next. A new event then takes its place."""

    def __iter__(self) -> Iterator[FollowedModel]:
        return iter(self._served.values())

    def find(self, model: str) -> FollowedModel:
        """Return the model of this name. Raises UnknownModelError."""
        served = self._served
        if model not in served:
            raise UnknownModelError(model, served)
        return served[model]

    def some(self, model: str) -> list[FollowedModel]:
        """Return the model of this name, or all models for an empty name. Raises UnknownModelError."""
        return [self.find(model)] if model else list(self)

    def followers(self, model: str = "") -> list[Follower[Any]]:
        """Return the followers of one model, or of all models, each follower once. Raises UnknownModelError."""
        return followers_of(self.some(model))

    def follower(self, model: str) -> Follower[Any]:
        """See `follower_of`."""
        return cast("Follower[Any]", follower_of(self, model))

    def is_awaited(self, one: FollowedModel) -> bool:
        """Whether the model was configured at the start. The server is ready only once such models serve."""
        return one in self._awaited

    def missing(self) -> dict[str, str]:
        """Return the models that were configured at the start and do not serve, each with the reason if known.

        Models that were added later do not count, because callers of the other models do not need them. If workers end
        again and again, the key "workers" has the reason.
        """
        statuses = {one.name: one.status() for one in self._awaited}
        missing = {name: status.short_reason for name, status in statuses.items() if status.state is not State.SERVING}
        trouble = self.trouble()
        return {**missing, "workers": trouble} if trouble else missing

    async def apply(self, models: Sequence[AnySettings], changes: Mapping[str, Change] | None = None) -> None:
        """Serve exactly these models from now on, with `changes` of pins, labels and memory by model.

        1. Check the settings.
        2. Prepare aside. New models look at their stores and restore versions. Other models restore the versions that
           their changes need. Every step that may fail happens here, invisible to callers.
        3. Replace the table, in one assignment, and wake watchers. From now on requests find the new models.
        4. Stop following removed models. Their memory is freed when no request holds them.
        5. Set the pins and labels. Earlier pins and labels stay, unless the changes name them.

        Returns after step 5. By then a new model serves, unless its store is still empty and no model of its name
        served before. A model with the same settings and no changes is not touched. The change goes on if the caller
        leaves. Raises SettingsError, StoreError, UnknownVersionError, SyncError if a version cannot be used or takes
        too long, NotServingError while draining, and TimeoutError if a store does not answer in step 5.
        """
        change = asyncio.ensure_future(self._apply(tuple(models), changes or {}))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        await asyncio.shield(change)

    async def _apply(self, models: Sequence[AnySettings], changes: Mapping[str, Change]) -> None:
        async with self._changing:
            self._check_draining(one.name for one in models)
            before = self._served
            known = [one.settings for one in before.values()]
            await aside(partial(check_models, models, known=known), "a look at the stores of new models")
            changes = {**_changes_of_settings(models, before), **changes}
            served = await aside(partial(self._maker.make, models, before, changes), "what was kept of new models")
            steps = _steps(served, before, changes)
            try:
                await _prepare(steps)
                await asyncio.to_thread(self._maker.join, served)
                self._check(served)
            except BaseException:
                self._maker.end(served.values(), kept=before.values())
                for one in steps:
                    one.follower.hold(None)
                raise
            self._served = served
            for one in steps:
                one.follower.on_trial(False)
            self._awaited = [served[one.name] for one in self._awaited if _is_there(one, served)]
            changed, self.changed = self.changed, asyncio.Event()
            changed.set()
            self._maker.end(before.values(), kept=served.values())
            await _choose(steps)

    def _check(self, served: Mapping[str, FollowedModel]) -> None:
        """Raise NotServingError while draining, SyncError if a serving model would stop serving."""
        self._check_draining(served)
        for name, one in served.items():
            known = self._served.get(name)
            if known is None or known is one or known.status().serving is None or one.status().serving is not None:
                continue
            status = one.status()
            error = NotServingError(name, nothing_serves(status.store, status.short_reason))
            raise SyncError(f"{error}; what was served goes on")

    def _check_draining(self, names: Iterable[str]) -> None:
        if self._draining:
            raise NotServingError(", ".join(names), "the server is stopping")

    def start(self) -> None:
        """Follow every store."""
        for one in self.followers():
            one.start()

    async def looked(self) -> None:
        """Wait for the first look at every store and the restores after it, but at most _SECONDS."""
        await _first_looks(self.followers())

    def drain(self) -> None:
        """Stop restoring, and refuse requests to followers. Versions that serve keep serving."""
        self._draining = True
        for one in self.followers():
            one.drain()

    async def close(self) -> None:
        """End every follower, after the restore in progress, if any."""
        await asyncio.gather(*(asyncio.to_thread(one.close) for one in self.followers()))


@dataclass(frozen=True, slots=True)
class _Step:
    """One follower's part in a change of models."""

    follower: Follower
    change: Change
    is_new: bool


def _changes_of_settings(models: Sequence[AnySettings], before: Mapping[str, FollowedModel]) -> dict[str, Change]:
    """Return the changes of labels and memory that new settings make, by model.

    The labels of a new model are no change, because its follower starts with them.
    """
    changes = {}
    for one in models:
        if isinstance(one, ModelSettings):
            known = before[one.name].settings if one.name in before else None
            labels = known.labels if isinstance(known, ModelSettings) and known.store == one.store else one.labels
            anew = {label: number for label, number in one.labels.items() if labels.get(label) != number}
            changes[one.name] = Change(labels=anew, latest=one.latest)
    return changes


async def _first_looks(followers: Sequence[Follower]) -> None:
    looks = [asyncio.wrap_future(one.looked) for one in followers]
    if looks:
        await asyncio.wait(looks, timeout=_SECONDS)


def _steps(
    served: Mapping[str, FollowedModel], before: Mapping[str, FollowedModel], changes: Mapping[str, Change]
) -> list[_Step]:
    """Return the steps of new followers, and of old followers that need a change."""
    known = followers_of(before.values())
    steps = []
    for name, one in served.items():
        if isinstance(one.settings, ModelSettings):
            [follower], change = one.followers, changes[name]
            if follower not in known:
                steps.append(_Step(follower, change, is_new=True))
            elif not change.is_so(follower.status(), follower.latest, follower.beside):
                steps.append(_Step(follower, change, is_new=False))
    return steps


async def _prepare(steps: Sequence[_Step]) -> None:
    """Start new followers, and have all followers bring the versions they will need into memory.

    Followers work on their own threads. A directory that hangs, or a graph that never ends, therefore delays neither
    the next change nor the end of the process.
    """
    answers = {}
    for one in steps:
        one.follower.hold(one.change)
        action = Action.BEGIN if one.is_new else Action.PREPARE
        answers[asyncio.wrap_future(one.follower.ask(action, change=one.change))] = one.follower.model
        if one.is_new:
            one.follower.on_trial(True)
            one.follower.start()
    if not answers:
        return
    done, late = await asyncio.wait(answers, timeout=_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
    for answer in late:
        answer.cancel()
    for error in [answer.exception() for answer in done]:
        if error is not None:
            raise error
    if late:
        names = ", ".join(answers[answer] for answer in late)
        raise SyncError(f"{names}: the versions were not in memory within {_SECONDS:g} s; nothing changed")


async def _choose(steps: Sequence[_Step]) -> None:
    """Set pins and labels. Raises TimeoutError if a follower takes long, and other errors if the server ends."""
    answers = {}
    for one in steps:
        answer = one.follower.ask(Action.CHANGE, change=one.change)
        answer.add_done_callback(partial(_release_hold, one.follower))
        answers[asyncio.wrap_future(answer)] = one.follower.model
    if not answers:
        return
    done, late = await asyncio.wait(answers, timeout=_SECONDS_TO_CHOOSE)
    for error in [answer.exception() for answer in done]:
        if error is not None:
            raise error
    if late:
        names = ", ".join(answers[answer] for answer in late)
        raise TimeoutError(f"the change is accepted, and takes effect for {names} once the store answers")


def _release_hold(follower: Follower, _: object) -> None:
    follower.hold(None)


def _is_there(one: FollowedModel, served: Mapping[str, FollowedModel]) -> bool:
    return one.name in served and served[one.name].followers == one.followers
