"""The note in a local copy of a store: the address of the bucket it is a copy of, and why versions do not come."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from paramsync.errors import CorruptCheckpointError
from paramsync.host import files

NAME = "mirror.json"
_LIMIT = 1 << 14  # bytes


@dataclass(frozen=True, slots=True)
class CopyNote:
    """`reason` says why no version comes; "" while the bucket answers."""

    address: str
    reason: str = ""

    def write(self, store: Path) -> None:
        """Put the note into a local copy. A copy without a note works all the same."""
        with suppress(OSError), files.aside(store / NAME) as file:
            file.write(json.dumps(asdict(self)).encode())


def read(store: Path) -> CopyNote | None:
    """The note in a local copy; None for a store that is no copy."""
    with suppress(OSError, ValueError, TypeError, CorruptCheckpointError):
        return CopyNote(**json.loads(files.content(store / NAME, limit=_LIMIT)))
    return None
