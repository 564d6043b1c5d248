"""No two files of the product need each other, not even for types or by an import within a function."""

from __future__ import annotations

import ast
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
