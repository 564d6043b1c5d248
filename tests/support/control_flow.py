"""How loops and branches of v1 graphs are built: as functions, or as ops of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

v1 = tf.compat.v1


@contextmanager
def control_flow(version: str) -> Iterator[None]:
    """Within it, those that are built are of control flow "v1" or "v2"."""
    before = v1.control_flow_v2_enabled()
    _enable(version == "v2")
    try:
        yield
    finally:
        _enable(before)


def _enable(v2: bool) -> None:
    (v1.enable_control_flow_v2 if v2 else v1.disable_control_flow_v2)()
