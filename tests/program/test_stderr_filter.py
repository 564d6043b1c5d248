"""TensorFlow's noise is left out of standard error, and nothing else is, however the process ends."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys

import pytest

from paramsync.program import stderr_filter
from tests.support.programs import ROOT

AT = "0000 00:00:1795222514.769616   15028 "
NOISE = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    f"I{AT}port.cc:153] oneDNN custom operations are on. You may see slightly different results",
    f"I{AT}cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available CPU instructions",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the right flags.",
]
NO_GPU = [
    f"I{AT}cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.",
    f"E{AT}cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN ERROR (303)",
]
WORDS = [
    f"E{AT}cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA_ERROR_NO_DEVICE: no device is detected (100)",
    f"I{AT}gpu_device.cc:2019] Created device /job:localhost/device:GPU:0 with 77000 MB memory",
    f"F{AT}cpu_feature_guard.cc:16] The TensorFlow library was compiled to use AVX instructions",
    "2026-11-21 00:00:00,000 INFO paramsync.trainer: oneDNN custom operations are on.",
    "",
    "a line that does not end",
]


def run(ending: str, *, lines: list[str]) -> tuple[int, str]:
    """Exit code and standard error of a process that says these within the block, as C++ does, and ends like that."""
    code = f"""
import os, signal, sys
from paramsync.program import stderr_filter
with stderr_filter.left_out():
    os.write(2, {chr(10).join(lines)!r}.encode())
    {ending}
sys.stderr.write(" and after it")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_only_noise_is_left_out() -> None:
    assert run("pass", lines=[*NOISE, *WORDS]) == (0, "\n".join(WORDS) + " and after it")


@pytest.mark.skipif(stderr_filter._NVIDIA.exists(), reason="there is a GPU: it is not noise here that it is not used")
def test_what_is_said_of_gpus_is_noise_where_there_is_none() -> None:
    assert run("pass", lines=[*NO_GPU, "end"]) == (0, "end and after it")


def test_an_error_within_the_block_comes_through_with_all_that_was_said_before() -> None:
    code, text = run("raise ImportError('no such symbol')", lines=["said before", ""])
    assert code == 1
    assert text.startswith("said before\nTraceback")
    assert text.endswith("ImportError: no such symbol\n")


@pytest.mark.parametrize("ending", ["os.abort()", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_last_words_of_a_process_that_is_killed_come_through(ending: str) -> None:
    code, text = run(ending, lines=[*NOISE, WORDS[2], ""])
    assert code in (-signal.SIGABRT, -signal.SIGKILL)
    assert text == WORDS[2] + "\n"


def test_what_is_said_comes_through_before_the_block_ends() -> None:
    code = (
        "import os, sys\nfrom paramsync.program.stderr_filter import left_out\n"
        "with left_out(): os.write(2, b'now\\n'); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "now\n"


def test_a_process_without_standard_error_is_left_alone() -> None:
    code = "from paramsync.program import stderr_filter\nwith stderr_filter.left_out(): print('here')"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} 2>&-"
    assert subprocess.run(command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout == b"here\n"


@pytest.mark.slow
def test_tensorflow_says_nothing_while_it_is_imported() -> None:
    ending = "import tensorflow as tf; tf.config.list_logical_devices()"
    assert run(ending, lines=[]) == (0, " and after it")
