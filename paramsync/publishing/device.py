"""The device that TensorFlow trains on: its name, and how values come from it to the host in large pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt


def device_name() -> str:
    """The device in words. TensorFlow logs here what it has to say about its devices, unless it did before."""
    import tensorflow as tf

    tf.config.list_logical_devices()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "CPU"
    return f"GPU ({tf.config.experimental.get_device_details(gpus[0]).get('device_name', 'unknown')})"


PIECE = 64 << 20  # bytes that leave a device at once

Arrays = dict[str, npt.NDArray[np.generic]]


def _nothing(name: str) -> None:
    """For callers that pin nothing."""


def device_of(value: Any) -> str | None:
    """The accelerator that holds a value; None for a value that numpy can read where it lies."""
    device: str = getattr(value, "backing_device", "")
    return device if device and "CPU" not in device else None


def fetch(
    values: Mapping[str, Any],
    *,
    away: Callable[[Any], str | None] = device_of,
    piece: int = PIECE,
    fetched: Callable[[str], object] = _nothing,
) -> Arrays:
    """All values as arrays. Values on the host are not copied; those that `away` names a device for are fetched.

    1. The values of one device and dtype are put one behind the other, on the device, into pieces of at most `piece`
       bytes. A larger value is a piece by itself, and not copied there. One piece at a time: beside the values, that
       is all the device memory this takes.
    2. A piece is copied by a function of TensorFlow's, whose copies to the host go into pinned memory and run beside
       what the device computes; a tensor's own `.numpy()` would wait for everything, once for each.
    3. `fetched` is called with the names in a piece once it is here: its values may be released.

    The calling thread waits without the GIL. Raises what TensorFlow does, such as
    ResourceExhaustedError where the device has no room for a piece.
    """
    places: dict[tuple[str, Any], list[str]] = {}
    found: Arrays = {}
    for name in values:
        device = away(values[name])
        if device is None:
            found[name] = np.asarray(values[name])
        else:
            places.setdefault((device, values[name].dtype), []).append(name)
    order = list(values)
    for names in places.values():
        sizes = [values[name].shape.num_elements() * values[name].dtype.size for name in names]
        for some in divide(names, sizes, piece):
            found.update(_fetch_piece(some, values))
            for name in some:
                fetched(name)
    return {name: found[name] for name in order}


def divide(names: Sequence[str], sizes: Sequence[int], piece: int) -> Iterator[list[str]]:
    """The names in order, in groups of at most so many bytes together, or of one that is larger."""
    group: list[str] = []
    room = piece
    for name, size in zip(names, sizes, strict=True):
        if group and size > room:
            yield group
            group, room = [], piece
        group.append(name)
        room -= size
    if group:
        yield group


def _fetch_piece(names: Sequence[str], values: Mapping[str, Any]) -> Arrays:
    whole = np.asarray(_gather()([values[name] for name in names]))
    ends = np.cumsum([values[name].shape.num_elements() for name in names])
    parts = np.split(whole, ends[:-1])
    return {name: part.reshape(values[name].shape) for name, part in zip(names, parts, strict=True)}


@cache
def _gather() -> Any:
    """Traced once for all shapes of a piece, which are the same in every publication of a model."""
    import tensorflow as tf  # here: without tensors of TensorFlow's nobody needs it

    @tf.function(autograph=False)
    def gather(values: list[tf.Tensor]) -> tf.Tensor:
        flat = [tf.reshape(value, [-1]) for value in values]
        whole = tf.concat(flat, 0) if len(flat) > 1 else flat[0]
        with tf.device("/CPU:0"):
            return tf.identity(whole)

    return gather
