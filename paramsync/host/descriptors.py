"""File descriptors: as many as this process may have, of which connections leave some to files."""

from __future__ import annotations

import resource
from contextlib import suppress

_MOST = 1 << 16  # more than that costs every child process time
KEPT = 256  # for stores, libraries and all else that is no connection


def raise_limit() -> None:
    """Have as many as may be had without a privilege; the usual soft limit of 1,024 is made for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has a limit beside it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def for_connections() -> int:
    """How many connections this process can have, so that files can still be opened."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(16, soft - KEPT)
