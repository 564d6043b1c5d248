"""TensorFlow Serving's `tensorflow_model_server_test.py`, run as it stands but for which server it starts."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LEFT_OUT = {
    "testPredictOnTfLite": "needs TensorFlow Lite",
    "testPredictWithSignatureDefOnTfLite": "needs TensorFlow Lite",
    "test_profiler_service_with_valid_trace_request": "needs the profiler",
    "test_tf_text": "needs ops of TensorFlow Text, which are in no package here",
    "test_session": "is the framework's own, and skips itself",
}
_PATIENCE = 240  # tries, a second apart, until a server answers, where the test has 60: this machine may be busy
_OLD_KERAS = "needs tf_keras, which calls the input as the test does: python -m pip install tf_keras"
_LEFT_OUT_WITHOUT_OLD_KERAS = dict.fromkeys(
    ("test_sequential_keras_saved_model_save", "test_distrat_sequential_keras_saved_model_save"), _OLD_KERAS
)


def run(source: Path, folder: Path, words: str) -> int:
    """Says how each test ended. Returns how many failed."""
    left_out = dict(_LEFT_OUT)
    if importlib.util.find_spec("tf_keras") is None:
        left_out |= _LEFT_OUT_WITHOUT_OLD_KERAS
    else:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    found = _module(source, folder)
    tests = [one for one in _flat(unittest.defaultTestLoader.loadTestsFromModule(found)) if words in one.id()]
    result = _Result(found.tensorflow_model_server_test_base.TensorflowModelServerTestBase)
    for test in tests:
        name = test.id().rpartition(".")[2]
        if name in left_out:
            result.left_out += 1
            _say(f"left out {name}: {left_out[name]}")
        else:
            test.run(result)
    result.end(keep=0)
    failed = len(result.failures) + len(result.errors)
    passed = result.testsRun - failed - len(result.skipped)
    _say(f"tests: {passed} passed, {failed} failed, {result.left_out + len(result.skipped)} left out of {len(tests)}")
    return failed


class _Result(unittest.TestResult):
    """Ends the servers of tests that are over, but for the last one, which the next test may ask for."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self._base = base
        self.left_out = 0

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        _say(f"passed   {_name(test)}")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        _say(f"FAILED   {_name(test)}: {_last(err)}")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        _say(f"FAILED   {_name(test)}: {_last(err)}")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        _say(f"left out {_name(test)}: {reason}")

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.end(keep=1)

    def end(self, *, keep: int) -> None:
        servers: dict[Any, tuple[subprocess.Popen[bytes], str, str]] = self._base.model_servers_dict
        for key in list(servers)[: len(servers) - keep]:
            process = servers.pop(key)[0]
            process.kill()
            process.wait()


def _module(source: Path, folder: Path) -> Any:
    """Their module, with the stubs that are installed and the files of the checkout that it imports."""
    os.environ["TEST_SRCDIR"] = str(folder)
    os.environ["TEST_TMPDIR"] = str(folder / "tmp")
    (folder / "tmp").mkdir()
    _provide_portpicker()
    import tensorflow.compat.v1 as tf
    import tensorflow_serving
    from tensorflow.python.platform import flags  # as the test itself imports it

    tensorflow_serving.__path__.append(str(source))  # behind what is installed
    tf.enable_eager_execution()
    found = importlib.import_module("tensorflow_serving.model_servers.tensorflow_model_server_test")
    flags.FLAGS([sys.argv[0]])
    found.tensorflow_model_server_test_base.WAIT_FOR_SERVER_READY_INT_SECS = _PATIENCE
    return found


def _provide_portpicker() -> None:
    """A free port: what its package of that name is asked for."""
    found = types.ModuleType("portpicker")

    def pick_unused_port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    vars(found)["pick_unused_port"] = pick_unused_port
    sys.modules.setdefault("portpicker", found)


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from _flat(one)
        else:
            yield one


def _name(test: unittest.TestCase) -> str:
    return test.id().rpartition(".")[2]


def _last(err: Any) -> str:
    details = getattr(err[1], "details", None)
    lines = [one.strip() for one in str(details() if callable(details) else err[1]).splitlines() if one.strip()]
    return f"{err[0].__name__}: {lines[0] if lines else ''}"[:300]


def _say(text: str) -> None:
    sys.__stdout__.write(f"{text}\n")  # type: ignore[union-attr]  # what the test itself prints goes elsewhere
    sys.__stdout__.flush()  # type: ignore[union-attr]
