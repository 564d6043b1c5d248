"""Break the product on purpose, promise by promise, and see that a test fails: `python -m tests.project.mutations`.

Each mutation of mutations.toml is made in a copy of the tree, where one of its tests has to fail. An argument selects
the mutations whose promise or file contains it. The tests run in forks of this process, which has imported TensorFlow:
that takes longer than most tests.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.programs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_IMPORTED = ("tensorflow", "keras", "grpc", "tensorflow_serving.apis.predict_pb2")
_OURS = ("paramsync", "inferencer", "trainer", "bench", "tests")


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


class Tree:
    """A copy of the tree, in which one mutation at a time is made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mutation: Mutation | None = None
        self._log = path.with_suffix(".log")
        self._before = path.with_suffix(".before")  # the file without the mutation
        self._began = 0.0
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for file in filter(None, listed.split("\0")):
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, path / file)

    def start(self, mutation: Mutation) -> int:
        """Run the tests of a mutation in another process, whose id is returned."""
        shutil.copy2(self.path / mutation.file, self._before)
        mutation.apply(self.path)
        self.mutation, self._began = mutation, time.monotonic()
        process = os.fork()
        if not process:
            with self._log.open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            self._test(mutation.tests)
        return process

    def end(self, code: int) -> str:
        """Undo the mutation; `code` is what its process ended with. Returns what to print."""
        mutation = self.mutation
        assert mutation is not None
        self.mutation = None
        shutil.copy2(self._before, self.path / mutation.file)  # and its time, by which Python knows what is compiled
        outcome = "caught  " if code == pytest.ExitCode.TESTS_FAILED else "SURVIVED"
        took = time.monotonic() - self._began
        said = f"{outcome} {took:4.0f} s  {mutation.promise} ({mutation.file}: {mutation.old.strip()})\n"
        return said if outcome != "SURVIVED" else f"{said}{self._log.read_text()[-2000:]}"

    def _test(self, tests: Sequence[str]) -> None:
        code = 70
        try:
            os.chdir(self.path)
            sys.path[:] = [str(self.path), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
            for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
                del sys.modules[name]
            importlib.invalidate_caches()
            code = int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]))
        except BaseException:  # noqa: BLE001, it must not come back into the loop of the other process
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.project.mutations")
    parser.add_argument("part", nargs="?", default="", help="of the promise or the file (default: all mutations)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="mutations at a time (default %(default)s)")
    arguments = parser.parse_args(argv)
    chosen = [mutation for mutation in read() if arguments.part in mutation.promise or arguments.part in mutation.file]
    for name in _IMPORTED:
        importlib.import_module(name)
    waiting, survivors, running = chosen[::-1], 0, dict[int, Tree]()
    with tempfile.TemporaryDirectory(prefix="paramsync-mutations-") as name:
        free = [Tree(Path(name, str(number))) for number in range(min(arguments.jobs, len(chosen)))]
        while waiting or running:
            if free and waiting:
                tree = free.pop()
                running[tree.start(waiting.pop())] = tree
                continue
            process, status = os.wait()
            tree = running.pop(process)
            said = tree.end(os.waitstatus_to_exitcode(status))
            survivors += said.startswith("SURVIVED")
            sys.stdout.write(said)
            sys.stdout.flush()
            free.append(tree)
    sys.stdout.write(f"{len(chosen) - survivors} of {len(chosen)} mutations were caught\n")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
