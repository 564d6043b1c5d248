"""The serving program, and what other programs use of it: Replica and Follower."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferencer.connection import Connection
    from inferencer.follower import Follower
    from inferencer.replica import Replica

__all__ = ["Connection", "Follower", "Replica"]


def __getattr__(name: str) -> object:
    """With them comes TensorFlow, which is not imported before somebody asks for one of them."""
    if name in __all__:
        return getattr(import_module(f"inferencer.{name.lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
