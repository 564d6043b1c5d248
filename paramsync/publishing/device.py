"""What TensorFlow trains on."""

from __future__ import annotations

import tensorflow as tf


def name() -> str:
    """The device in words. TensorFlow says here what it has to say about its devices, unless it has done so before."""
    tf.config.list_logical_devices()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "CPU"
    return f"GPU ({tf.config.experimental.get_device_details(gpus[0]).get('device_name', 'unknown')})"
