"""Coverage-guided fuzzing of the index reader, with atheris: make fuzz ARGS=-max_total_time=300.

Finds its own beginnings; arguments are libFuzzer's. What it finds is left in crash-* files; each becomes a test.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["paramsync", "tests.hostile.fuzz.read"]):
    from tests.hostile.fuzz import mutate, read


def _one(content: bytes) -> None:
    read.read(content)


def _mutated(content: bytes, limit: int, seed: int) -> bytes:
    made = mutate.mutated(content, Random(seed), lambda given: atheris.Mutate(given, len(given) + 64))
    return made if len(made) <= limit else content


def main(arguments: Sequence[str]) -> None:
    """Fuzz until told to stop, a minute unless told otherwise."""
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(mutate.seeds()):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        limits = ["-max_len=65536", "-timeout=10", "-rss_limit_mb=1024", "-max_total_time=60"]
        atheris.Setup([sys.argv[0], *limits, *arguments, corpus], _one, custom_mutator=_mutated)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
