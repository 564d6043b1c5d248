"""Keys of a checkpoint that mean something to TensorFlow."""

from __future__ import annotations

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Where tf.train.Checkpoint looks for how the saved objects hang together."""
