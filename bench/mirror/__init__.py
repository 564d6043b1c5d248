"""`python -m bench mirror`: copies of a store through an object store. The benchmark has several parts."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from bench.settings import Settings


def run(given: Settings, folder: Path) -> dict[str, Any]:
    """Measure the requested parts, one after the other. `rows` has the figures that are shown as tables."""
    figures: dict[str, Any] = {"rows": {}}
    for name in given.peers:
        (folder / name).mkdir()
        part = importlib.import_module(f"bench.mirror.{name}").run(given, folder / name)
        figures["rows"] |= part.pop("rows", {})
        figures |= part
    return figures
