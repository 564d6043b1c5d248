"""What failed tests cost: real runs of pytest on a few small tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import PATIENCE, ROOT
from tests.support.second_chance import MOST

pytestmark = pytest.mark.slow
BESIDE = """
import os
import pytest

def beside_others():
    return "PYTEST_XDIST_WORKER" in os.environ
"""
FAILS_BESIDE = """
@pytest.mark.parametrize("value", ["a b", "x::[y]"])
def test_call(value):
    assert not beside_others()

@pytest.fixture
def left():
    yield
    assert not beside_others()

def test_teardown(left):
    pass
"""


def run(folder: Path, *arguments: str, **files: str) -> tuple[int, str, str]:
    """Exit code, what was printed and what the file of outcomes says."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_passing.py").write_text("def test_passes(): pass\n")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(BESIDE + text)
    outcomes = folder / "outcomes"
    command = [sys.executable, "-m", "tests.support.second_chance", "small", str(outcomes), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.stdout.endswith("\n" + outcomes.read_text()), done
    return done.returncode, done.stdout, outcomes.read_text()


def test_a_run_without_failures_is_over(tmp_path: Path) -> None:
    code, printed, outcome = run(tmp_path, "-n", "2", ".")
    assert (code, outcome) == (0, "small: passed\n")
    assert printed.count("1 passed in") == 1


def test_tests_that_pass_alone_are_forgiven_and_named(tmp_path: Path) -> None:
    code, printed, outcome = run(tmp_path, "-n", "2", "--dist", "loadfile", ".", beside=FAILS_BESIDE)
    assert code == 0, printed
    first, *names = outcome.splitlines()
    assert first == "small: 3 tests failed beside others and passed alone:"
    tests = ("test_call[a b]", "test_call[x::[y]]", "test_teardown")
    assert sorted(names) == [f"  test_beside.py::{name}" for name in tests]
    assert "3 passed in" in printed  # and what had passed does not run again


def test_one_test_that_fails_alone_too_fails_the_run(tmp_path: Path) -> None:
    code, _, outcome = run(tmp_path, "-n", "2", ".", beside=FAILS_BESIDE, wrong="def test_fails(): assert False\n")
    assert code == 1
    lines = outcome.splitlines()
    assert lines[0] == "small: 3 tests failed beside others and passed alone:"
    assert lines[4:] == ["  1 test failed beside others and did not pass alone:", "  test_wrong.py::test_fails"]


def test_a_test_that_is_skipped_alone_has_not_passed(tmp_path: Path) -> None:
    skips = "def test_it():\n    beside_others() or pytest.skip('alone')\n    assert False\n"
    code, _, outcome = run(tmp_path, "-n", "2", ".", skips=skips)
    assert code == 1
    assert outcome == "small: 1 test failed beside others and did not pass alone:\n  test_skips.py::test_it\n"


@pytest.mark.parametrize("count", [MOST, MOST + 1])
def test_many_failures_get_no_second_chance(tmp_path: Path, count: int) -> None:
    many = f"@pytest.mark.parametrize('i', range({count}))\ndef test_it(i): assert not beside_others()\n"
    code, printed, outcome = run(tmp_path, "-n", "2", ".", many=many)
    assert code == int(count > MOST)
    assert printed.count("passed in") == 1 + (count <= MOST)
    assert ("too many for a second chance" in outcome) == (count > MOST)


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["alone", "beside others"])
def test_a_module_that_cannot_be_imported_gets_no_second_chance(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, printed, outcome = run(tmp_path, *arguments, ".", beside=FAILS_BESIDE, broken="import nothing_of_that_name\n")
    assert code in (1, 2)
    assert "gets no second chance" in outcome
    assert "once more, alone" not in printed


def test_a_run_that_stopped_at_its_first_failure_gets_no_second_chance(tmp_path: Path) -> None:
    code, printed, outcome = run(tmp_path, "-x", ".", wrong="def test_fails(): assert False\n")
    assert code == 1
    assert "left out, which gets no second chance" in outcome
    assert "once more, alone" not in printed


@pytest.mark.parametrize(
    ("arguments", "text", "ended"),
    [(("--no-such-option",), "", 4), (("-m", "nobody"), "", 5), ((), "def test_it(): os._exit(3)\n", 3)],
    ids=["usage", "no tests", "crash"],
)
def test_an_end_of_pytest_itself_gets_no_second_chance(
    tmp_path: Path, arguments: tuple[str, ...], text: str, ended: int
) -> None:
    code, _, outcome = run(tmp_path, *arguments, ".", ends=text)
    assert code == ended
    assert outcome == f"small: pytest ended with exit code {ended}, which gets no second chance\n"
