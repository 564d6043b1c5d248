"""Shared values as messages of paramsync.v1."""

from __future__ import annotations

from paramsync.v1 import sync_pb2 as pb
from paramsync.version import Version


def of_version(version: Version) -> pb.Version:
    return pb.Version(
        number=version.number,
        step=version.step,
        prefix=version.prefix,
        graph=version.graph,
        step_done_at=version.step_done_at,
        snapshot_at=version.snapshot_at,
        committed_at=version.committed_at or 0.0,
        bytes=version.bytes,
        bytes_written=version.bytes_written,
        checksum=version.checksum,
        finite=version.finite,
        metrics=version.metrics,
    )
