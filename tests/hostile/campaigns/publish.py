"""Publishes as fast as it can until it is killed: `python -m tests.hostile.campaigns.publish STORE`."""

from __future__ import annotations

import sys
from pathlib import Path

from paramsync.store.commit import StoreWriter
from tests.hostile.campaigns.versions import FROZEN, tensors, version


def main(store: str) -> None:
    """Writes the number of each version to standard output once it is committed."""
    with StoreWriter(Path(store), keep=2) as writer:
        while True:
            number = writer.next_number(1)
            writer.commit(version(number), tensors(number), unchanged=[FROZEN] if number % 7 else [])
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
