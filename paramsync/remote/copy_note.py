"""The note in a local copy of a store: the address of its bucket, and what followers are to know of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from paramsync.errors import CorruptCheckpointError
from paramsync.host import files

NAME = "mirror.json"
_LIMIT = 1 << 14  # bytes


@dataclass(frozen=True, slots=True)
class CopyNote:
    """`reason` says why no version comes; "" while the bucket answers.

    `pinned` and `labels` are the choices of operators for all followers of the bucket.
    """

    address: str
    reason: str = ""
    pinned: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)

    def write(self, store: Path) -> None:
        """Put the note into a local copy. A copy without a note works all the same."""
        with suppress(OSError), files.aside(store / NAME) as file:
            file.write(json.dumps(asdict(self)).encode())


def read(store: Path) -> CopyNote | None:
    """The note in a local copy; None for a store that is no copy."""
    with suppress(OSError, ValueError, TypeError, CorruptCheckpointError):
        note = CopyNote(**json.loads(files.content(store / NAME, limit=_LIMIT)))
        numbers = [*note.labels.values(), *([] if note.pinned is None else [note.pinned])]
        if isinstance(note.address, str) and all(type(number) is int for number in numbers):
            return note
    return None
