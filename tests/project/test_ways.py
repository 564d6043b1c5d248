"""How long the ways are that somebody has to read: each new module on them is to be worth it."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support.programs import ROOT

_MOST = {"from publish to swap": 33, "from a Predict to its answer": 28}


def test_the_ways_of_a_version_and_of_a_predict_are_listed_and_do_not_grow() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.project.ways"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith(" "):
            modules[[*modules][-1]].add(line.split()[1])
        else:
            modules[line.split(":")[0]] = set()
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    lists = re.findall(r"^## A (?:version|Predict)'s way$.*?```text\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    for (name, most), listed in zip(_MOST.items(), lists, strict=True):
        assert modules[name] <= {line.split()[0] for line in listed.splitlines()}
        assert len(modules[name]) <= most
