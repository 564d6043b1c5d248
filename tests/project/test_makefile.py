"""What each command of the Makefile installs first: those who only look at it run wait for no tool of developers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import ROOT


@pytest.mark.parametrize(
    ("target", "locks"), [("up", ["requirements.lock"]), ("fast", ["requirements.lock", "requirements-dev.lock"])]
)
def test_a_command_installs_what_it_runs_and_shows_how_that_goes(tmp_path: Path, target: str, locks: list[str]) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-dev.lock"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    installs = [line.split() for line in done.stdout.splitlines() if " pip install " in line]
    assert [words[-1] for words in installs if "-r" in words] == [".venv/uv.lock", *locks]
    assert all("--require-hashes" in words for words in installs if "-r" in words)
    assert not any("--quiet" in words or "-q" in words for words in installs)


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-gpu.lock"])
def test_the_bill_of_materials_is_of_what_an_image_installs(lock: str) -> None:
    command = ["make", "--no-print-directory", "--dry-run", "--assume-old=.venv/.runs", "sbom", f"LOCK={lock}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    *_, made = done.stdout.splitlines()
    assert "cyclonedx_py requirements" in made
    assert made.split()[-1] == lock
    assert (ROOT / lock).exists()


def test_the_installer_is_the_one_that_is_locked(tmp_path: Path) -> None:
    (command,) = [line.strip().lstrip("@") for line in (ROOT / "Makefile").read_text().splitlines() if "sed -n" in line]
    command = command.replace("$$", "$").replace("$(VENV)", str(tmp_path))
    subprocess.run(["sh", "-c", command], cwd=ROOT, check=True, timeout=60)
    first, *hashes = (tmp_path / "uv.lock").read_text().splitlines()
    assert first.startswith("uv==")
    assert hashes
    assert all(line.strip().startswith("--hash=sha256:") for line in hashes)


def test_the_tests_that_commands_name_are_there() -> None:
    named = [word for word in (ROOT / "Makefile").read_text().split() if word.startswith("tests/") and "*" not in word]
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
