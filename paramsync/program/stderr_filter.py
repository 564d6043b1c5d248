"""Filters the meaningless lines that TensorFlow writes to standard error while it is imported.

TF_CPP_MIN_LOG_LEVEL does not reach these lines: they are written before logging is set up.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HEAD = rb"[IE]0000 \S+ +\d+ "
_ALWAYS = (
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR",
    _HEAD + rb"port\.cc:\d+\] oneDNN custom operations are on\.",
    _HEAD + rb"cpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized to use",
    rb"To enable the following instructions: .* rebuild TensorFlow",
)
_WITHOUT_GPU = (
    _HEAD + rb"cudart_stub\.cc:\d+\] Could not find cuda drivers on your machine",
    _HEAD + rb"cuda_\w+\.cc:\d+\] failed call to cuInit: .*\(303\)$",  # there is no driver
)
_NVIDIA = Path("/proc/driver/nvidia")  # where there is a GPU, why it is not used is worth knowing


@contextmanager
def left_out() -> Iterator[None]:
    """Drop known noise from file descriptor 2 within the block, and pass everything else on.

    A process of its own filters the lines, so that even the last words of a process that aborts come through: so
    TensorFlow ends on a processor that it was not built for.
    """
    if sys.stderr is None:  # it was closed before the program began, and 2 may be any other file by now
        yield
        return
    sys.stderr.flush()
    command = [sys.executable, "-IS", __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, start_new_session=True) as sieve:
        assert sieve.stdin is not None
        real = os.dup(2)
        os.dup2(sieve.stdin.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(real, 2)
            os.close(real)


def _sieve() -> None:
    noise = re.compile(b"|".join(_ALWAYS if _NVIDIA.exists() else _ALWAYS + _WITHOUT_GPU))
    for line in sys.stdin.buffer:
        if not noise.match(line):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    _sieve()
