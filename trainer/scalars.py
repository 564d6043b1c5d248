"""Scalars: writes loss and speed for TensorBoard. Needs TensorFlow, but not TensorBoard."""

from __future__ import annotations

import logging
from pathlib import Path

import tensorflow as tf
from tensorflow.core.framework import summary_pb2

from paramsync.publishing.metrics import Meter
from paramsync.version import Version

_log = logging.getLogger("paramsync.trainer")


class Scalars:
    """Writes loss, steps_per_second, published_version and stall_ms by step. Each start of a trainer begins a new file.

    Only the thread that trains may use it. If a write fails, the error is logged, nothing more is written, and training
    goes on.
    """

    def __init__(self, directory: Path | None) -> None:
        """The first write creates the file. If `directory` is None, nothing is written."""
        self._directory = directory
        self._writer: tf.summary.SummaryWriter | None = None
        self._kind = summary_pb2.SummaryMetadata(
            plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="scalars"),
            data_class=summary_pb2.DATA_CLASS_SCALAR,
        )

    def write(self, meter: Meter, published: Version | None) -> None:
        """Write a point for each known value, at the step of the meter."""
        if self._directory is None:
            return
        points = {
            "loss": meter.loss,
            "steps_per_second": meter.steps_per_second,
            "published_version": None if published is None else published.number,
            "stall_ms": None if meter.stall is None else meter.stall * 1000,
        }
        try:
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self._directory))
            with tf.device("CPU:0"), self._writer.as_default(step=meter.step):
                for name, value in points.items():
                    if value is not None:
                        tf.summary.write(name, tf.constant(value, tf.float32), metadata=self._kind)
            self._writer.flush()
        except (tf.errors.OpError, OSError) as error:
            _log.warning("nothing more is written for TensorBoard to %s: %s", self._directory, error)
            self._directory = None

    def close(self) -> None:
        """Close the file. Nothing may be written afterwards."""
        if self._writer is not None and self._directory is not None:
            self._writer.close()
