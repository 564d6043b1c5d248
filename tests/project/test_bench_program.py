"""How benchmarks are run: wrong arguments are refused before anything runs, and contestants take turns."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from bench import settings
from bench.__main__ import main
from bench.timing import Contestant, measure
from paramsync.errors import SettingsError


def test_help_does_not_wait_for_numpy_or_tensorflow() -> None:
    code = "import sys; from bench.__main__ import main; main(['restore', '--help'])"
    guarded = f"""
import atexit, sys
atexit.register(lambda: sys.stderr.write(repr(sorted({{'numpy', 'tensorflow', 'rich'}} & set(sys.modules)))))
{code}
"""
    ended = subprocess.run([sys.executable, "-c", guarded], capture_output=True, text=True, check=True)
    assert ended.stderr == "[]"
    assert "--json PATH" in ended.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "nosuch",
        "publish --mb 0",
        "publish --only tape",
        "publish --runs 0",
        "publish --only h5 --no-peers",
        "call --parameters 7",
        "call --only h5",
        "stall --tensors 5",
        "publish --large-mb 4",
        "stall --sizes 0",
        "stall --seconds 0",
        "stall --device tpu",
        "peers --only h5",
        "peers --seconds 0",
    ],
)
def test_wrong_arguments_get_the_usage_and_exit_code_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: python -m bench")


def test_files_that_do_not_fit_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", "--mb", "999999", "--folder", str(tmp_path)]) == 2
    assert "bench: --folder: expected room for" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such folder"):
        settings.folder(tmp_path / "nosuch", 1)


def test_json_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", "--json", str(tmp_path / "nosuch" / "a.json")]) == 2
    assert capsys.readouterr().err.startswith("bench: --json ")


def test_contestants_take_turns_in_every_round() -> None:
    calls: list[str] = []
    contestants = [Contestant(name=name, run=partial(calls.append, name)) for name in "abc"]
    timings = measure(
        contestants, runs=4, between=lambda: calls.append("|"), order=random.Random(0), track=lambda rounds, _: rounds
    )
    rounds = "".join(calls).split("|")[1:]
    assert len(rounds) == 5
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 1
    assert {name: len(taken) for name, taken in timings.samples.items()} == {"a": 4, "b": 4, "c": 4}


def test_only_running_is_timed() -> None:
    def slow() -> None:
        ends = time.perf_counter() + 0.05
        while time.perf_counter() < ends:
            pass

    one = Contestant(name="one", prepare=slow, run=lambda: None, clear=slow)
    timings = measure([one], runs=3, between=slow, order=random.Random(0), track=_all)
    assert statistics.median(timings.samples["one"]) < 10


def test_a_peer_that_fails_is_absent_with_its_reason() -> None:
    def fail() -> None:
        raise OSError("out of tape")

    contestants = [Contestant(name="peer", run=fail, optional=True), Contestant(name="ours", run=lambda: None)]
    timings = measure(contestants, runs=1, order=random.Random(0), track=_all)
    assert timings.absent == {"peer": "failed: OSError: out of tape"}
    assert timings.median("peer") is None
    assert timings.median("ours") is not None


def test_ours_that_fails_ends_the_run() -> None:
    def fail() -> None:
        raise OSError("out of memory")

    with pytest.raises(OSError, match="out of memory"):
        measure([Contestant(name="ours", run=fail)], runs=1, order=random.Random(0), track=_all)


def _all(rounds: Iterable[int], count: int) -> Iterable[int]:
    return rounds
