"""Where versions come from: checkpoints that we or TensorFlow wrote, or SavedModels in numbered directories."""

from __future__ import annotations

from paramsync.sources.kinds import open_source
from paramsync.sources.source import Bell, Look, Source, Verification

__all__ = ["Bell", "Look", "Source", "Verification", "open_source"]
