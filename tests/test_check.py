"""`make check` notices what it is there for: each test breaks one thing in a copy of the tree and runs one target."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    leave_out = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "tests")
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


def test_imports_fail_when_the_trainer_imports_the_inferencer(tree: Path) -> None:
    assert make(tree, "imports").returncode == 0
    (tree / "trainer" / "schedule.py").write_text('"""Wrong."""\n\nimport inferencer.policy\n')
    broken = make(tree, "imports")
    assert broken.returncode != 0
    assert "trainer.schedule -> inferencer.policy" in broken.stdout


def test_generated_fails_when_a_contract_was_changed_and_not_generated(tree: Path) -> None:
    assert make(tree, "generated").returncode == 0
    contract = tree / "proto" / "paramsync" / "v1" / "sync.proto"
    contract.write_text(contract.read_text().replace("int64 pinned = 10", "int64 pinned = 99"))
    broken = make(tree, "generated")
    assert broken.returncode != 0
    assert "run make proto" in broken.stderr


def test_types_fail_when_a_type_is_wrong(tree: Path) -> None:
    (tree / "trainer" / "wrong.py").write_text('"""Wrong."""\n\nsteps: int = "many"\n')
    broken = subprocess.run(
        [Path(sys.executable).parent / "mypy", "--no-incremental", "-p", "trainer", "-p", "paramsync"],
        cwd=tree, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "trainer/wrong.py:3: error" in broken.stdout
    assert broken.stdout.rstrip().splitlines()[-1].startswith("Found 1 error")
