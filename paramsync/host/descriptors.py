"""Limits file descriptors: as many as this process may have, of which connections leave some to files."""

from __future__ import annotations

import resource
from contextlib import suppress

_MOST = 1 << 16  # more would cost every child process time
KEPT = 256  # for stores, libraries and everything else but connections


def raise_limit() -> None:
    """Raise the soft limit as far as is allowed without a privilege; the usual 1,024 is made for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has a limit beside it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def for_connections() -> int:
    """The number of connections that leave this process enough descriptors for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(16, soft - KEPT)
