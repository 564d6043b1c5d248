"""Publishes into a bucket until it is killed: `python -m tests.hostile.campaigns.bucket ADDRESS`."""

from __future__ import annotations

import sys
import threading

from paramsync.remote.outgoing import Outgoing
from tests.hostile.campaigns.versions import tensors, version

_PAUSE = 0.02  # seconds between two looks at what the mirror has copied


def main(address: str) -> None:
    """Writes the number of each version to standard output once it is in the bucket."""
    outgoing = Outgoing(address, keep=4)
    with outgoing.writer() as writer:
        assert outgoing.child is not None
        pause = threading.Event()
        while not outgoing.child.over:
            number = writer.next_number(1)
            writer.commit(version(number), tensors(number))
            while not outgoing.child.over and (outgoing.child.newest or 0) < number:
                pause.wait(_PAUSE)
            sys.stdout.write(f"{number}\n" if not outgoing.child.over else "over\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
