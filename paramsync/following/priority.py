"""How urgent a thread is to the kernel, where it can be told."""

from __future__ import annotations

import os
import threading

import tensorflow as tf

BEHIND = 1  # of 19: no more, for what serves waits for a thread that was put off while it had the interpreter's lock


def lower(by: int = BEHIND) -> None:
    """Have this thread, and those that it starts, give way to all others. Linux; elsewhere nothing happens."""
    try:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + by)
    except (AttributeError, OSError):
        return


def start_tensorflow() -> None:
    """Have TensorFlow start the threads it computes with: a thread inherits how urgent the one is that starts it."""
    with tf.device("CPU:0"):
        tf.add(tf.zeros([]), 1.0)
