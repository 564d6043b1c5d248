"""The note in a local copy of a store: the address and status of its bucket, and operators' choices for followers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from paramsync import moments
from paramsync.errors import CorruptCheckpointError
from paramsync.host import files
from paramsync.moments import Move
from paramsync.remote import bucket_status
from paramsync.remote.bucket_status import BucketStatus
from paramsync.store.store import LastPublisher, PublisherState

NAME = "mirror.json"
_LIMIT = 1 << 14  # most bytes of a note


@dataclass(frozen=True, slots=True)
class CopyNote:
    """The content of the note.

    `reason` says why versions are not copied at present; it is "" while they are. `pinned` and `labels` are operators'
    choices for all followers of the bucket; `move` is set if the pin changes at one moment. `ended` and `ended_at` say
    how the last publisher ended, as in the state. `run`, `epoch` and `sequence` are from the last state that the mirror
    followed. A restarted mirror follows no other run and no older state.
    """

    address: str
    reason: str = ""
    pinned: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    run: str = ""
    epoch: int = 0
    sequence: int = 0
    ended: str = ""
    ended_at: float = 0.0
    status: BucketStatus | None = None
    move: Move | None = None

    @property
    def publisher(self) -> LastPublisher | None:
        """The publisher of the bucket, once it has ended."""
        if not self.ended:
            return None
        return LastPublisher(PublisherState(self.ended), self.ended_at, self.ended_at)

    def write(self, store: Path, answered_at: float | None = None) -> None:
        """Write the note into a local copy, with `answered_at` as the time of the file.

        Errors are ignored, because a copy also works without a note.
        """
        values = asdict(self)
        for name in ("move", "ended", "ended_at"):
            if not values[name]:
                del values[name]  # earlier releases refuse a note with a key that they do not know
        with suppress(OSError), files.aside(store / NAME) as file:
            file.write(json.dumps(values).encode())
            file.flush()
            os.utime(file.fileno(), (answered_at or 0.0, answered_at or 0.0))


def touch(store: Path, answered_at: float) -> None:
    """Set the time of the note's file to when the bucket answered. This wakes no follower."""
    with suppress(OSError):
        os.utime(store / NAME, (answered_at, answered_at))


def answered_at(store: Path) -> float | None:
    """Return when the bucket of a local copy last answered, in seconds since the epoch; None if it never did."""
    try:
        return (store / NAME).stat().st_mtime or None
    except OSError:
        return None


def is_there(store: Path) -> bool:
    """Return whether the store has a note, readable or not: if it has none, it is no copy."""
    try:
        (store / NAME).lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def read(store: Path) -> CopyNote | None:
    """Return the note in a local copy; None if the store has no readable note."""
    with suppress(OSError, ValueError, TypeError, CorruptCheckpointError):
        values = json.loads(files.content(store / NAME, limit=_LIMIT))
        values = {name: values[name] for name in CopyNote.__slots__ if name in values}  # a newer release has more keys
        status, move = values.pop("status", None), values.pop("move", None)
        status = None if status is None else bucket_status.from_values(status)
        note = CopyNote(**values, status=status, move=None if move is None else moments.from_values(move))
        numbers = [*note.labels.values(), note.epoch, note.sequence, *([] if note.pinned is None else [note.pinned])]
        texts = (note.address, note.run)
        ends = note.ended in ("", *(state.value for state in PublisherState)) and type(note.ended_at) in (int, float)
        if ends and all(isinstance(text, str) for text in texts) and all(type(number) is int for number in numbers):
            return note
    return None
