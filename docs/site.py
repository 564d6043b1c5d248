"""What `mkdocs build` adds to the pages: the README as the first page, and the help texts that pages ask for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)]*)\)")
_HELP = re.compile(r"<!-- help: (.*) -->")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    text = (ROOT / "README.md").read_text()
    text = text.replace("(docs/", "(").replace('"docs/', '"').replace("(CONTRIBUTING.md)", "(../CONTRIBUTING.md)")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = _HELP.sub(lambda asked: f"```text\n{_help(asked[1])}```", markdown)
    return _OUTSIDE.sub(r"\1 (`\2`)", markdown)  # files of the repository are not on the site


def _help(command: str) -> str:
    """What `paramsync COMMAND --help` prints."""
    arguments = [*command.split()[1:], "--help"]
    program = [sys.executable, "-m", "paramsync.cli", *arguments]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stdout
