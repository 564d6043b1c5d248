"""Processes that serve the same version share one copy of its parameters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.support.checkpoints import write
from tests.support.programs import bounded

MIB = 1 << 20
PARAMETERS = 64 * MIB

FOLLOWER = """
import os, sys
from pathlib import Path
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from paramsync.checkpoint.reader import Bundle
from paramsync.graphs.parameters import alias

def restore(prefix):
    bundle = Bundle.open(Path(prefix))
    bundle.verify(bundle.entries, finite=True)
    tensors = [alias(bundle.array(name)) for name in bundle.entries]
    return tensors, float(tf.add_n([tf.reduce_sum(tensor) for tensor in tensors]))

before = restore(sys.argv[1])
for line in sys.stdin:
    after = restore(line.strip())
    print(after[1], flush=True)
"""


@contextmanager
def follower(small: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has restored a small checkpoint, so that what TensorFlow takes for itself is there."""
    command = [sys.executable, "-c", FOLLOWER, str(small)]
    with bounded(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)) as process:
        yield process


def restore(process: subprocess.Popen[str], prefix: Path) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    print(prefix, file=process.stdin, flush=True)
    return process.stdout.readline()


def memory(processes: list[subprocess.Popen[str]]) -> int:
    """Bytes in use by these processes, each page counted once: the sum of what is proportionally theirs.

    But for libraries: other processes, as of tests beside this one, take a share of these, until they end.
    """
    found = 0
    for process in processes:
        library = False
        for line in Path(f"/proc/{process.pid}/smaps").read_text().splitlines():
            first, *rest = line.split()
            if not first.endswith(":"):
                library = ".so" in Path(line).name
            elif first == "Pss:" and not library:
                found += int(rest[0]) << 10
    return found


@pytest.mark.slow
def test_a_second_follower_takes_no_memory_for_parameters(tmp_path: Path) -> None:
    write(tmp_path / "small", {f"{number:02d}": np.ones(100_000, np.float32) for number in range(8)})
    large = {f"{number:02d}": np.ones(PARAMETERS // 32, np.float32) for number in range(8)}
    write(tmp_path / "large", large)
    with follower(tmp_path / "small") as first, follower(tmp_path / "small") as second:
        for process in (first, second):  # once more, so that both have everything but the parameters
            restore(process, tmp_path / "small")
        answer = restore(first, tmp_path / "large")
        one = memory([first, second])
        assert restore(second, tmp_path / "large") == answer
        assert memory([first, second]) - one < 0.02 * PARAMETERS
        assert one > PARAMETERS
