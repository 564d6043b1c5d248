"""Surgery on live v1 graphs: duplicate(), synchronise(), connect()."""

from paramsync.graphs.surgery.connect import Connected, connect
from paramsync.graphs.surgery.duplicate import Copy, Synchronisation, duplicate, synchronise

__all__ = ["Connected", "Copy", "Synchronisation", "connect", "duplicate", "synchronise"]
