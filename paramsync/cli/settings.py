"""What the commands take from the environment."""

from __future__ import annotations

import os

_FOR_TERMINALS = {"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}


def environment_for_logs() -> dict[str, str]:
    """For a child whose output is read by a program: nothing may make it draw as on a terminal."""
    return {name: value for name, value in os.environ.items() if name not in _FOR_TERMINALS}
