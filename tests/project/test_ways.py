"""How long the ways are that somebody has to read: each new module on them is to be worth it."""

from __future__ import annotations

import subprocess
import sys

from tests.support.programs import ROOT


def test_the_ways_of_a_version_and_of_a_predict_do_not_grow() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.project.ways"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    heads = [line.split(":") for line in done.stdout.splitlines() if not line.startswith(" ")]
    modules = {name: int(counted.split()[0]) for name, counted in heads}
    assert modules["from publish to swap"] <= 32
    assert modules["from a Predict to its answer"] <= 28
