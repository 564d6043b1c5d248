"""Coverage-guided fuzzing of HTTP/2, with atheris: make fuzz OF=http2 ARGS=-max_total_time=300.

Begins with the conversations and the corpus of this folder; arguments are libFuzzer's. What it finds is left in crash-*
files: each goes into the corpus, which tests/http2 replays.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["paramsync.http2", "tests.hostile.fuzz.http2"]):
    from tests.hostile.fuzz import http2

_WHOLE = 1 << 20
_CORPUS = Path(__file__).parent / "corpus"


def _one(content: bytes) -> None:
    """Without and with the preface, which a fuzzer seldom finds; at once, and cut by what the first octet says."""
    for conversation in (content, http2.BEGINNING + content):
        whole = http2.described(http2.connect(conversation, _WHOLE, answered=False))
        cut = 1 + (content[0] if content else 0)
        assert http2.described(http2.connect(conversation, cut, answered=False)) == whole
        http2.connect(conversation, cut, answered=True)


def _mutated(content: bytes, limit: int, seed: int) -> bytes:
    """By frames where it is some, by octets else, and every other time."""
    if seed & 1 and http2.is_whole(content):
        made = http2.mutated(content, Random(seed))
        return made if len(made) <= limit else content
    mutated: bytes = atheris.Mutate(content, limit)
    return mutated


def main(arguments: Sequence[str]) -> None:
    """Fuzz until told to stop, a minute unless told otherwise."""
    with tempfile.TemporaryDirectory() as corpus:
        for number, beginning in enumerate(http2.beginnings()):
            (Path(corpus) / f"seed-{number}").write_bytes(beginning)
        limits = ["-max_len=65536", "-timeout=10", "-rss_limit_mb=1024", "-max_total_time=60"]
        atheris.Setup([sys.argv[0], *limits, *arguments, corpus, str(_CORPUS)], _one, custom_mutator=_mutated)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
