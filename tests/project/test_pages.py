"""Pages are true of the tree: links lead somewhere, files are there, names are all there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import paramsync.graphs
from paramsync.cli import arguments
from tests.support.programs import ROOT

PAGES = sorted(page.relative_to(ROOT) for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What links can name of a page, as GitHub makes it of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(page)) + re.findall(r'(?:src|srcset)="([^"]+)"', prose(page))
    for link in links:
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / page.parent / file).resolve() if file else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=str)
def test_files_that_pages_name_are_there(page: Path) -> None:
    named = set(
        re.findall(r"`((?:paramsync|trainer|inferencer|tests|bench|examples|deploy|proto)/[\w/.-]*)`", prose(page))
    )
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parts[0] == "docs"], ids=str)
def test_a_page_begins_with_its_question(page: Path) -> None:
    title, question, *_ = (ROOT / page).read_text().split("\n\n")
    assert title.startswith("# ")
    assert "?" in question


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_figures_stand_on_the_page_of_their_commands() -> None:
    page = " ".join((ROOT / "docs" / "performance.md").read_text().split())
    rows = re.findall(r"^\| .* \| `python -m bench .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows
    for row in rows:
        *words, command = row.strip("| ").split(" | ")
        assert command in page
        for figure in re.findall(r"[\d.,]*\d", " ".join(words)):
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d,])", page), figure


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([^)\s#]+\.md)", prose(page))
            waiting += [(page.parent / link).resolve() for link in links]
    assert [page for page in ROOT.glob("docs/**/*.md") if page.resolve() not in reached] == []


def test_every_command_is_on_the_page_of_operators() -> None:
    commands = set(re.findall(r"^    ([a-z]+) ", arguments.parser().format_help(), re.MULTILINE))
    listed = set(re.findall(r"`paramsync ([a-z]+)", (ROOT / "docs" / "operate.md").read_text()))
    assert commands - {"up", "serve", "train"} <= listed


def test_the_api_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    names = [*paramsync.__all__, *paramsync.graphs.__all__, "PublishCallback", "PublishHook", "SessionPublisher"]
    errors = [name for name in vars(importlib.import_module("paramsync.errors")) if name.endswith("Error")]
    assert [name for name in [*names, *errors] if not re.search(rf"\b{name}\b", text)] == []


def test_pictures_can_be_read() -> None:
    for picture in (ROOT / "docs" / "pictures").glob("*.svg"):
        assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
