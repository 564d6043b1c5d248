"""Which processes hold a file: what the kernel says about the shared locks that followers take on what they map."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

_File = tuple[int, int, int]  # major and minor number of the device, inode

LOCKS = Path("/proc/locks")


def shared_locks(locks: Path = LOCKS) -> Mapping[_File, frozenset[int]] | None:
    """Process ids by the file that each has a shared lock on, as far as this process can see; None where it cannot."""
    try:
        lines = locks.read_text().splitlines()
    except OSError:
        return None
    found: defaultdict[_File, set[int]] = defaultdict(set)
    for line in lines:
        words = line.split()
        if words[1:4] == ["FLOCK", "ADVISORY", "READ"]:  # one that waits for its lock has `->` before these
            major, minor, inode = words[5].split(":")
            found[int(major, 16), int(minor, 16), int(inode)].add(int(words[4]))
    return {file: frozenset(processes) for file, processes in found.items()}


def of(files: Iterable[os.stat_result], locks: Mapping[_File, frozenset[int]]) -> list[int]:
    """The processes that hold any of the files, ascending."""
    identities = [(os.major(one.st_dev), os.minor(one.st_dev), one.st_ino) for one in files]
    return sorted(frozenset().union(*(locks.get(identity, ()) for identity in identities)))
