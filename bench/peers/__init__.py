"""`python -m bench peers`: other systems that serve, beside ours, with one network and one load generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.settings import Settings


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """As `measuring.run`, which imports TensorFlow; a module of this folder that is a program does so by itself."""
    from bench.peers import measuring

    return measuring.run(settings, folder)
