"""The models of one server, as its processes see them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from paramsync.errors import RequestError
from paramsync.status import Status

from ..settings.settings import AnySettings, ModelSettings
from .counts import Followed

if TYPE_CHECKING:
    from paramsync.inference.resident import Resident

Supervisor: TypeAlias = "Callable[..., Awaitable[Any]]"
"""Asks the supervisor a question by its name and arguments."""

_AT_A_TIME = 4  # questions


class Model(Protocol):
    """A model, for any thread. It stays valid when the server's models change."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> AnySettings: ...

    def status(self) -> Status: ...


class Models(Protocol):
    """The models of a server now. At a change, `changed` is set and another event takes its place."""

    changed: asyncio.Event

    def __iter__(self) -> Iterator[Model]: ...

    def find(self, model: str) -> Model:
        """Raises UnknownModelError."""

    def some(self, model: str) -> Sequence[Model]:
        """The model of this name, or all models for an empty name. Raises UnknownModelError."""

    def followers(self, model: str = "") -> Sequence[Any]:
        """The followers of one model, or of all models, each follower once. Raises UnknownModelError."""

    def missing(self) -> Mapping[str, str]:
        """The models configured at the start that do not serve, each with the reason if known."""


class Served(Model, Protocol):
    """A model of a process that answers predictions."""

    def take(self, version: int | None = None, label: str = "") -> Resident:
        """The version with this number or label; without both, the version that serves.

        Raises NotServingError, UnknownVersionError, UnknownLabelError.
        """


class ServedModels(Models, Protocol):
    """The models of a process that answers predictions."""

    def __iter__(self) -> Iterator[Served]: ...

    def find(self, model: str) -> Served:
        """Raises UnknownModelError."""

    def some(self, model: str) -> Sequence[Served]:
        """The model of this name, or all models for an empty name. Raises UnknownModelError."""

    def batched(self, model: str) -> bool:
        """Whether waiting requests of this model may share a call."""


def few_at_a_time(supervisor: Supervisor) -> Supervisor:
    """Limit the questions that the supervisor has at a time, so that a flood of requests does not delay operators.

    A question counts until its answer comes, even if the caller has left.
    """
    places = asyncio.Semaphore(_AT_A_TIME)

    async def ask(*question: Any) -> Any:
        await places.acquire()
        answer = asyncio.ensure_future(supervisor(*question))
        answer.add_done_callback(lambda _: places.release())
        return await asyncio.shield(answer)

    return ask


class ServedModel:
    """A model with a store, and its follower."""

    def __init__(self, settings: ModelSettings, followed: Followed) -> None:
        self.name = settings.name
        self.settings = settings
        self.followed = followed
        self.followers = (followed.follower,)
        self.status = followed.follower.status


def follower_of(models: Models, model: str) -> Any:
    """The follower of a model with a store. For an empty name, the follower of the server's only model.

    Raises UnknownModelError, and RequestError for a joined model.
    """
    names = [one.name for one in models]
    if not model and len(names) == 1:
        [model] = names
    models.find(model)
    followers = models.followers(model)
    if len(followers) > 1:
        parts = " and ".join(one.model for one in followers)
        raise RequestError(f"model {model!r}: expected one with a store, found one joined from {parts}: name these")
    return followers[0]
