"""Every block of code of README and docs runs as it stands, in the order of its page, from an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import pages
from tests.support.programs import ROOT

PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
OF_A_CHECKOUT = ("README.md", "docs/train-with-jax-or-pytorch.md")
RUN = [page for page in PAGES if any(part.language in pages.RUN and not part.spared for part in pages.parts(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_what_a_page_shows_works(page: str, tmp_path: Path) -> None:
    pages.run(page, tmp_path, checkout=page in OF_A_CHECKOUT)


def test_blocks_that_are_not_run_say_why() -> None:
    spared = [(page, part.line, part.spared) for page in PAGES for part in pages.parts(page) if part.spared]
    assert len(spared) == 16, spared


def test_keras_begins_as_the_readme_does() -> None:
    def block(page: str) -> str:
        [text] = [part.text for part in pages.parts(page) if part.language == "python" and "epochs=3" in part.text]
        return text

    assert block("docs/train-with-keras.md") == block("README.md")


def test_a_block_is_run_or_shows_data() -> None:
    languages = {(page, part.line): part.language for page in PAGES for part in pages.parts(page)}
    known = {*pages.RUN, *pages.SHOWN, "stop"}
    assert {where: language for where, language in languages.items() if language not in known} == {}
    for page in PAGES:
        blocks = [part for part in pages.parts(page) if part.language != "stop"]
        assert (ROOT / page).read_text().count("```") == 2 * len(blocks), page
