"""The image's build has all that it copies."""

from __future__ import annotations

import re
from fnmatch import fnmatch

from tests.support.programs import ROOT


def test_what_the_image_copies_is_sent_to_the_build() -> None:
    copied = re.findall(r"^COPY (?!--)(\S+) ", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in (one.replace("${REQUIREMENTS}", "requirements.lock") for one in copied):
        assert any(fnmatch(path, pattern) for pattern in sent), path
        assert (ROOT / path).exists(), path
    assert len(copied) > 5
