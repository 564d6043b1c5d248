"""The importer: reads a version from any kind of store, and writes its graph and values into files in memory."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from paramsync import dtypes
from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.host.processes import limit_memory
from paramsync.inference.resident import Resident
from paramsync.sources.opening import open_source
from paramsync.version import Version

from ..processes.channel import Channel, Handler, close_all
from ..processes.messages import Imported, ParameterPlace
from ..settings.settings import ModelSettings

_MOST_OF_MEMORY = 0.75


def importing(settings: ModelSettings, *, descriptors: Sequence[int]) -> None:
    """Run the importer until the supervisor is gone or ends it."""
    limit_memory(_MOST_OF_MEMORY)
    tf.config.set_visible_devices([], "GPU")
    source = open_source(
        settings.store,
        inputs=settings.inputs,
        outputs=settings.outputs,
        graph=settings.graph,
        verification=settings.verify,
        allowed=settings.allowed,
        warmed=False,  # a trial process calls the graph first, not this process
    )

    def restore(version: Version, *, descriptors: Sequence[int]) -> Imported:
        try:
            source.look()  # detects the kind of store
            return _imported(source.restore(version, partial(channel.tell, "progress")), *descriptors)
        except tf.errors.OpError as error:
            raise _portable(error) from None
        finally:
            close_all(descriptors)

    handlers: dict[str, Handler] = {"pid": os.getpid, "restore": restore}
    channel = Channel(socket.socket(fileno=descriptors[0]), handlers, name=f"importer of {settings.name}")
    channel.run()


def _imported(resident: Resident, graph: int, parameters: int) -> Imported:
    """Write the graph and the values into two files, given as descriptors."""
    with os.fdopen(os.dup(graph), "wb") as file:
        file.write(resident.graph.to_bytes())
    size, places = _written(resident, parameters)
    digest, refused = resident.graph.digest, dict(resident.graph.refused)
    return Imported(digest, refused, frozenset(resident.graph.embeddings), size, places)


def _written(resident: Resident, descriptor: int) -> tuple[int, list[ParameterPlace | Any]]:
    """Write the parameters into the file, one after another. Returns the file's size and the place of each parameter.

    For strings, and for dtypes that the file cannot hold, the list has the array itself instead of a place.
    """
    arrays = [tensor.numpy() for tensor in resident.parameters]
    places: list[ParameterPlace | Any] = []
    size = 0
    for tensor, array in zip(resident.parameters, arrays, strict=True):
        number = dtypes.from_numpy(array.dtype)
        if tensor.dtype == tf.string or number is None:
            places.append(np.asarray(array))
            continue
        size = -(-size // ALIGNMENT) * ALIGNMENT
        places.append(ParameterPlace(0, size, number, tuple(array.shape)))
        size += array.nbytes
    os.ftruncate(descriptor, size)
    if size:
        with mmap.mmap(descriptor, size) as memory:
            for place, array in zip(places, arrays, strict=True):
                if isinstance(place, ParameterPlace) and array.nbytes:
                    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                    np.copyto(np.frombuffer(memory, np.uint8, array.nbytes, place.offset), content)
    return size, places


def _portable(error: tf.errors.OpError) -> Exception:
    """Return an equivalent error that a process without TensorFlow can unpickle."""
    text = str(error.message)
    return MemoryError(text) if error.error_code in (4, 7, 8, 14) else RuntimeError(f"{type(error).__name__}: {text}")
