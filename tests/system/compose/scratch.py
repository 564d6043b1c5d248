"""A folder on disk for what must not be in the tree, gone afterwards with everything mounted inside."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.compose.commands import run

PARENT = Path("/var/tmp")  # on disk, where /tmp may be memory, and short: names of sockets have a limit


@contextmanager
def scratch(purpose: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"paramsync-{purpose}-", dir=PARENT))
    try:
        yield folder
    finally:
        # What was killed may have left mounts: the innermost first, and none may be there when files are removed.
        mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for point in reversed([point for point in mounted if point.startswith(f"{folder}/")]):
            run("umount", "--lazy", point)
        shutil.rmtree(folder)
