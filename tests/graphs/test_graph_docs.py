"""What docs/graphs.md says works: its Python is run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paramsync.graphs.graph import Graph
from tests.support.programs import ROOT


def test_what_the_page_about_graphs_shows_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "graphs.md").read_text().partition("## Surgery")[0]
    found: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, found)
    assert isinstance(found["whole"], Graph)
    assert (tmp_path / "digits.pb").exists()
