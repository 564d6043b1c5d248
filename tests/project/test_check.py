"""`make imports` and `make generated` pass in a copy of the tree, and fail after a break that they guard against."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    leave_out = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__")
    return Path(shutil.copytree(ROOT, tmp_path / "tree", ignore=leave_out))


def make(tree: Path, target: str) -> subprocess.CompletedProcess[str]:
    """Run one target with the tools that run this test."""
    tools = Path(sys.executable).parent
    ready = tools.parent / ".ready"
    return subprocess.run(
        ["make", target, f"BIN={tools}", f"READY={ready}", "--assume-old", str(ready)],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )


def passes(tree: Path, target: str) -> None:
    done = make(tree, target)
    assert done.returncode == 0, done.stdout + done.stderr


def fails(tree: Path, target: str) -> str:
    """What it says."""
    done = make(tree, target)
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_imports_fail_when_the_trainer_imports_the_inferencer(tree: Path) -> None:
    passes(tree, "imports")
    (tree / "trainer" / "screen.py").write_text('"""Wrong."""\n\nimport inferencer.settings.settings\n')
    assert "trainer.screen -> inferencer.settings.settings" in fails(tree, "imports")


def test_imports_fail_against_the_order_of_the_library(tree: Path) -> None:
    (tree / "paramsync" / "publishing" / "schedule.py").write_text(
        '"""Wrong."""\n\nimport paramsync.following.policy\n'
    )
    assert "paramsync.publishing.schedule -> paramsync.following.policy" in fails(tree, "imports")


def test_generated_fails_when_a_contract_was_changed_and_not_generated(tree: Path) -> None:
    passes(tree, "generated")
    contract = tree / "proto" / "paramsync" / "v1" / "sync.proto"
    contract.write_text(contract.read_text().replace("int64 pinned = 10", "int64 pinned = 99"))
    assert "run make proto" in fails(tree, "generated")
