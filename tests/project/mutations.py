"""Break the product on purpose, promise by promise, and see that a test fails: `python -m tests.project.mutations`.

Each mutation of mutations.toml is made in a copy of the tree, where its tests run and have to fail. An argument selects
the mutations whose promise or file contains it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

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


def survives(mutation: Mutation) -> str | None:
    """None if a test fails, as it has to; else the end of what pytest printed."""
    with tempfile.TemporaryDirectory(prefix="paramsync-mutation-") as name:
        tree = Path(name)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for file in listed.split("\0"):
            if file.endswith((".py", ".toml", ".proto", ".js", ".html", ".css", ".md", ".yml", ".sh", ".json")):
                (tree / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, tree / file)
        mutation.apply(tree)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutation.tests]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        return None if done.returncode == pytest.ExitCode.TESTS_FAILED else done.stdout[-2000:] + done.stderr[-2000:]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.project.mutations")
    parser.add_argument("part", nargs="?", default="", help="of the promise or the file (default: all mutations)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="mutations at a time (default %(default)s)")
    arguments = parser.parse_args(argv)
    chosen = [mutation for mutation in read() if arguments.part in mutation.promise or arguments.part in mutation.file]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        survivors = 0
        for mutation, end in zip(chosen, pool.map(survives, chosen), strict=True):
            sys.stdout.write(
                f"{'caught' if end is None else 'SURVIVED'}  {mutation.file}: {mutation.promise}\n{end or ''}"
            )
            sys.stdout.flush()
            survivors += end is not None
    sys.stdout.write(f"{len(chosen) - survivors} of {len(chosen)} mutations were caught\n")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
