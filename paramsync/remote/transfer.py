"""A version that a mirror copied."""

from __future__ import annotations

from dataclasses import dataclass

from paramsync.version import Version


@dataclass(frozen=True, slots=True)
class Transfer:
    """A version that was copied.

    bytes    how many bytes of data went over the network
    size     bytes of the whole version
    way      "whole" or "delta"
    deltas   how many deltas were copied
    seconds  duration of the transfer
    at       when the bucket had the version, in seconds since the epoch; 0 if an earlier release put it there
    damages  errors of the ways that were tried before this way
    """

    version: Version
    bytes: int
    size: int
    way: str
    deltas: int
    seconds: float
    at: float
    damages: tuple[str, ...] = ()
