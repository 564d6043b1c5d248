"""The list of mutations: each promise has one, each still applies, and its tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project import mutations
from tests.project.mutations import Mutation
from tests.support.programs import ROOT

MUTATIONS = mutations.read()


def _promises() -> list[str]:
    section = (ROOT / "docs" / "guarantees.md").read_text().partition("## What you get")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|") and "---" not in line]
    names = [row.split("|")[1].strip() for row in rows[1:]]
    return [name for name in names if not name.startswith("**")]


def test_every_promise_has_a_mutation() -> None:
    assert {mutation.promise for mutation in MUTATIONS} == set(_promises())


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[f"{at} {known.file}" for at, known in enumerate(MUTATIONS)])
def test_a_mutation_applies_and_names_tests(mutation: Mutation, tmp_path: Path) -> None:
    copy = tmp_path / mutation.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / mutation.file).read_text())
    mutation.apply(tmp_path)
    compile(copy.read_text(), mutation.file, "exec")
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        assert not name or re.search(rf"def {re.escape(name)}\(", text), test
