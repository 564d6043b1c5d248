"""Break the product on purpose, promise by promise, and see that a test fails: `python -m tests.project.mutations`.

Each mutation of mutations.toml is made in a copy of the tree, where one of its tests has to fail. An argument selects
the mutations whose promise or file contains it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.support.programs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Mutation:
    """In `file`, `old` becomes `new`, and one of `tests` has to fail. `promise` is that of docs/guarantees.md."""

    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        path = root / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.file} has {text.count(self.old)} times: {self.old}"
        path.write_text(text.replace(self.old, self.new))


def read() -> list[Mutation]:
    entries = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutation"]
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def copy_tree(tree: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in filter(None, listed.split("\0")):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, tree / file)


def survives(mutation: Mutation, tree: Path) -> str | None:
    """None if a test fails, as it has to; else the end of what pytest printed. Leaves the tree as it was."""
    mutation.apply(tree)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *mutation.tests]
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    finally:
        shutil.copy2(
            ROOT / mutation.file, tree / mutation.file
        )  # with its time, by which Python knows what it compiled
    return None if done.returncode == pytest.ExitCode.TESTS_FAILED else done.stdout[-2000:] + done.stderr[-2000:]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.project.mutations")
    parser.add_argument("part", nargs="?", default="", help="of the promise or the file (default: all mutations)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="mutations at a time (default %(default)s)")
    arguments = parser.parse_args(argv)
    chosen = [mutation for mutation in read() if arguments.part in mutation.promise or arguments.part in mutation.file]
    with tempfile.TemporaryDirectory(prefix="paramsync-mutations-") as name, ThreadPoolExecutor(arguments.jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(arguments.jobs):
            copy_tree(Path(name, str(number)))
            trees.put(Path(name, str(number)))

        def run(mutation: Mutation) -> tuple[str | None, float]:
            began, tree = time.monotonic(), trees.get()
            try:
                return survives(mutation, tree), time.monotonic() - began
            finally:
                trees.put(tree)

        survivors = 0
        for mutation, (end, seconds) in zip(chosen, pool.map(run, chosen), strict=True):
            outcome = "caught  " if end is None else "SURVIVED"
            sys.stdout.write(f"{outcome} {seconds:4.0f} s  {mutation.promise} ({mutation.file})\n{end or ''}")
            sys.stdout.flush()
            survivors += end is not None
    sys.stdout.write(f"{len(chosen) - survivors} of {len(chosen)} mutations were caught\n")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
