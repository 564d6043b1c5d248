"""What operators are told to do about a version in quarantine, by real reasons."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferencer.protocols.page.advice import TEXTS, advice
from paramsync.errors import CorruptCheckpointError, GraphError, ParameterError, UnsafeGraphError, UntrustedError
from paramsync.following.faults import told
from tests.support.programs import ROOT

FILE = Path("/store/ckpt-7.data-00000-of-00001")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (told(ParameterError(str(FILE), expected="finite values in w", found="NaN or infinity")), "Training diverged"),
        (told(ParameterError("version 7", expected="w", found="v")), "name variables otherwise"),
        (told(CorruptCheckpointError(FILE, expected="checksum 0x1 of w", found="0x2")), "paramsync verify STORE"),
        (told(UntrustedError("version 7", expected="a signature", found="none")), "--trust KEYFILE"),
        (told(UnsafeGraphError("PyFunc: allow each by its name (inferencer: --allow-op NAME)")), "--allow-op NAME"),
        ("workers crashed while they computed it (killed by signal 11)", "mend the model"),
        (told(GraphError("something else")), "Sync now"),
    ],
)
def test_each_reason_has_its_advice(reason: str, words: str) -> None:
    assert words in advice(reason)


def test_troubleshooting_has_the_same_advice() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text().replace("`", "")
    assert [text for text in TEXTS if text not in page] == []
