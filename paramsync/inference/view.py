"""View: the versions of one model that requests are answered from at one moment. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from paramsync.errors import UnknownLabelError, UnknownVersionError
from paramsync.version import Version


class InMemory(Protocol):
    """A version in memory, complete and checked: here, or in the processes that answer from it."""

    @property
    def version(self) -> Version: ...

    @property
    def graph(self) -> Any:
        """`refused` says of signatures that it was made without, why."""


R = TypeVar("R", bound=InMemory)
R_co = TypeVar("R_co", bound=InMemory, covariant=True)


@dataclass(frozen=True, eq=False)
class View(Generic[R]):
    """The versions that requests are answered from, replaced as a whole."""

    recent: tuple[R, ...] = ()  # those that served last, the serving one first
    labels: Mapping[str, R] = field(default_factory=dict)
    beside: tuple[R, ...] = ()  # what else is to be in memory
    residents: tuple[R, ...] = field(init=False)
    numbered: Mapping[int, R] = field(init=False)

    def __post_init__(self) -> None:
        residents = tuple(dict.fromkeys((*self.recent, *self.beside, *self.labels.values())))
        object.__setattr__(self, "residents", residents)
        # Of two with one number, a labelled one and the same rewritten, the one that served last is meant.
        object.__setattr__(self, "numbered", {one.version.number: one for one in reversed(residents)})

    def take(self, model: str, version: int | None = None, label: str = "") -> R:
        """The serving version, which there is, or the one with this number, or with this label.

        Raises UnknownVersionError, UnknownLabelError.
        """
        if label:
            if label not in self.labels:
                raise UnknownLabelError(model, label, self.labels)
            return self.labels[label]
        if version is None:
            return self.recent[0]
        if version not in self.numbered:
            raise UnknownVersionError(f"model {model!r}", version, self.numbered)
        return self.numbered[version]
