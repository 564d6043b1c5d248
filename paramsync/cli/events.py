"""Event files, which TensorBoard reads: records of a length, bytes, and a checksum of each."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from paramsync.host import files
from paramsync.tensorbundle.checksums import crc32c, mask
from paramsync.v1 import graph_def_pb2 as pb

_VERSION = "brain.Event:2"


def write_graph(directory: Path, graph_def: bytes, *, now: float, host: str) -> Path:
    """Makes an event file with that graph, and the directory where it is not there. Raises OSError.

    The file has its name once it is complete.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"events.out.tfevents.{now:.6f}.{host}.graph"
    with files.aside(path) as file:
        _record(file, pb.EventRecord(wall_time=now, file_version=_VERSION))
        _record(file, pb.EventRecord(wall_time=now, graph_def=graph_def))
    return path


def _record(file: BinaryIO, event: pb.EventRecord) -> None:
    content = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    for part in (length, content):
        file.write(part)
        file.write(struct.pack("<I", mask(crc32c(part))))
