"""No two files of the product need each other, not even for types; the ways that somebody has to read stay short."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Container
from graphlib import TopologicalSorter
from pathlib import Path

from tests.support.programs import ROOT

_PRODUCT = ("paramsync", "inferencer", "trainer")


def test_no_imports_go_in_a_circle() -> None:
    files = [file.relative_to(ROOT) for name in _PRODUCT for file in (ROOT / name).rglob("*.py")]
    modules = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    graph = {module: _imported(module, file, modules) & {*modules} - {module} for module, file in modules.items()}
    assert sum(map(len, graph.values())) > len(graph)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def _imported(module: str, file: Path, modules: Container[str]) -> set[str]:
    """The names of modules that a file imports anywhere in it."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            inner = [f"{source}.{alias.name}" for alias in node.names]
            names |= {name if name in modules else source for name in inner}
    return names


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
