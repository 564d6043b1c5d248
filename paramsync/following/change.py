"""Change: what a configuration says of one model's pin, labels and memory. What it does not name stays as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from paramsync.following.pins_file import Choices
from paramsync.following.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """All of it comes true at once, or nothing."""

    pinned: int | None = None  # the version to pin
    unpin: bool = False
    labels: Mapping[str, int] = field(default_factory=dict)  # to give, or to move
    without: Collection[str] = ()  # labels to take away, where they are there
    beside: tuple[int, ...] | None = None  # what else is to be in memory; None: what was to be stays
    latest: int | None = None  # how many of the newest stay in memory; None: those that served last do

    @property
    def versions(self) -> list[int]:
        """What has to be in memory for it."""
        pinned = () if self.pinned is None else (self.pinned,)
        return sorted({*pinned, *self.labels.values(), *(self.beside or ())})

    def of(self, choices: Choices) -> Choices:
        """The choices after it."""
        labels = {label: number for label, number in choices.labels.items() if label not in self.without}
        pinned = None if self.unpin else choices.pinned if self.pinned is None else self.pinned
        beside = choices.beside if self.beside is None else self.beside
        return replace(choices, pinned=pinned, labels={**labels, **self.labels}, beside=beside)

    def is_so(self, status: Status, latest: int | None, beside: tuple[int, ...]) -> bool:
        """Whether it is so already, where so many of the newest stay in memory, and these versions do."""
        choices = Choices(pinned=status.pinned, labels=dict(status.labels), beside=beside)
        return latest == self.latest and self.of(choices) == choices
