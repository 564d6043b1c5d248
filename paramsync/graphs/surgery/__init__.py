"""Surgery on live v1 graphs, by inputs and outputs: duplicate(), synchronise(), connect()."""

from paramsync.graphs.surgery.connect import Connected, connect
from paramsync.graphs.surgery.duplicate import Copy, duplicate
from paramsync.graphs.surgery.synchronise import Synchronisation, synchronise

__all__ = ["Connected", "Copy", "Synchronisation", "connect", "duplicate", "synchronise"]
