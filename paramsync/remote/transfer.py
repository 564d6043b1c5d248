"""What a mirror did: one version that came or went."""

from __future__ import annotations

from dataclasses import dataclass

from paramsync.version import Version


@dataclass(frozen=True, slots=True)
class Transfer:
    """A version that was copied.

    bytes    how many bytes of data went over the network
    size     bytes of the whole version
    way      "whole" or "delta"
    deltas   how many deltas the way has
    seconds  how long it took
    at       when the bucket had the version, in seconds since the epoch; 0 if an earlier release put it there
    damages  why cheaper ways could not be taken
    """

    version: Version
    bytes: int
    size: int
    way: str
    deltas: int
    seconds: float
    at: float
    damages: tuple[str, ...] = ()
