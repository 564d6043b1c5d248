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
"""A function that asks the supervisor a question, given the question's name and arguments."""

_AT_A_TIME = 4  # most questions at a time


class Model(Protocol):
    """A model. Any thread may use it, even after the server's models have changed."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> AnySettings: ...

    def status(self) -> Status: ...


class Models(Protocol):
    """The current models of a server. When the models change, `changed` is set and then replaced by a new event."""

    changed: asyncio.Event

    def __iter__(self) -> Iterator[Model]: ...

    def find(self, model: str) -> Model:
        """Return the model of this name. Raises UnknownModelError."""

    def some(self, model: str) -> Sequence[Model]:
        """Return the model of this name, or all models for an empty name. Raises UnknownModelError."""

    def followers(self, model: str = "") -> Sequence[Any]:
        """Return the followers of one model, or of all models, each follower once. Raises UnknownModelError."""

    def missing(self) -> Mapping[str, str]:
        """Return the models that were configured at the start and do not serve yet, each with the reason if known."""


class Served(Model, Protocol):
    """A model of a process that answers predictions."""

    def take(self, version: int | None = None, label: str = "") -> Resident:
        """Return the version with this number or label, or the serving version if both are missing.

        Raises NotServingError, UnknownVersionError, UnknownLabelError.
        """


class ServedModels(Models, Protocol):
    """The models of a process that answers predictions."""

    def __iter__(self) -> Iterator[Served]: ...

    def find(self, model: str) -> Served:
        """Return the model of this name. Raises UnknownModelError."""

    def some(self, model: str) -> Sequence[Served]:
        """Return the model of this name, or all models for an empty name. Raises UnknownModelError."""

    def batched(self, model: str) -> bool:
        """Whether waiting requests of this model may share a call."""


def few_at_a_time(supervisor: Supervisor) -> Supervisor:
    """Limit the questions that the supervisor gets at a time, so that a flood of requests does not delay operators.

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
    """Return the follower of a model that has a store. An empty name means the server's only model.

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
