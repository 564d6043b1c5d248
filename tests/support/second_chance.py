"""Which tests fail beside others only: runs pytest, and the few tests that failed once more, one at a time.

`python -m tests.support.second_chance NAME OUTCOMES ARGUMENT...`. ARGUMENTs are pytest's, NAME says what they run, and
OUTCOMES is a file that is told the outcome too. The second run has to pass every test that failed in the first one.
There is none where more than MOST failed, where some were not collected, and where pytest ended in any other way than
by failed tests. As a plugin of pytest it writes down how each test ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

MOST = 5
_NOTES = "--notes"
_ONLY = "--only"
_TESTS_FAILED = int(pytest.ExitCode.TESTS_FAILED)


@dataclass
class Notes:
    """How the tests of one run ended, by their node ids."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    whole: bool = True
    """Whether all tests were collected, and none was left out after others had failed."""


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._notes = Notes()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._notes.whole = self._notes.whole and not report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        notes = self._notes
        if report.failed and report.nodeid not in notes.failed:
            notes.failed.append(report.nodeid)
        if report.passed and report.when == "call":
            notes.passed.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._notes.whole = self._notes.whole and not (session.shouldfail or session.shouldstop)
        self._path.write_text(json.dumps(asdict(self._notes)))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("second chance")
    group.addoption(_NOTES, type=Path, metavar="FILE", help="write into it how each test ended")
    group.addoption(_ONLY, type=Path, metavar="FILE", help="run the tests only that failed by these notes")


def pytest_configure(config: pytest.Config) -> None:
    notes, only = config.getoption(_NOTES), config.getoption(_ONLY)
    if notes is not None and not hasattr(config, "workerinput"):  # whose reports come to the process that started it
        config.pluginmanager.register(_Writer(notes))
    if only is not None:
        config.args = _read(only).failed


def _read(path: Path) -> Notes:
    return Notes(**json.loads(path.read_text()))


def _pytest(*arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-p", __spec__.name, *arguments]
    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # pytest hears of it too, and ends its tests
                continue


def run(arguments: Sequence[str]) -> tuple[int, str]:
    """Exit code and outcome, for people."""
    with tempfile.TemporaryDirectory() as folder:
        beside, alone = Path(folder) / "beside", Path(folder) / "alone"
        code = _pytest(*arguments, f"{_NOTES}={beside}")
        if code == 0:
            return 0, "passed"
        if code != _TESTS_FAILED or not beside.exists():
            return abs(code), f"pytest ended with exit code {code}, which gets no second chance"
        first = _read(beside)
        count = _tests(len(first.failed))
        if not first.whole or not first.failed:
            return code, f"{count} failed and some could not be collected or were left out, which gets no second chance"
        if len(first.failed) > MOST:
            return code, f"{count} failed, which are too many for a second chance"
        sys.stdout.write(f"\n{count} failed: once more, alone\n\n")
        sys.stdout.flush()
        again = _pytest(*arguments, f"{_ONLY}={beside}", f"{_NOTES}={alone}", "-n", "0")
        second = _read(alone) if alone.exists() else Notes()
    mended = [test for test in first.failed if test in second.passed and test not in second.failed]
    failed = [test for test in first.failed if test not in mended]
    lines = [f"{_tests(len(mended))} failed beside others and passed alone:", *mended] if mended else []
    if failed:
        lines += [f"{_tests(len(failed))} failed beside others and did not pass alone:", *failed]
    return code if failed else abs(again), "\n  ".join(lines)


def _tests(count: int) -> str:
    return "1 test" if count == 1 else f"{count} tests"


def main(name: str, outcomes: str, *arguments: str) -> int:
    code, outcome = run(arguments)
    text = f"{name}: {outcome}\n"
    with Path(outcomes).open("a") as file:
        file.write(text)
    sys.stdout.write("\n" + text)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
