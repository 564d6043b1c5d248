"""The documented output of `--json`, read from the reference and docs/json-fields.json, and a check of values."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from tests.support.programs import ROOT

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float, str),  # a string stands for NaN
    "boolean": (bool,),
}


@cache
def section() -> str:
    """Return the section of the reference about JSON."""
    return (
        (ROOT / "docs" / "reference.md").read_text().partition("\n## JSON of the commands\n")[2].partition("\n## ")[0]
    )


@cache
def commands() -> set[str]:
    """Return the commands whose JSON the section describes."""
    table = section().partition("| command | prints |")[2].partition("\n\n")[0]
    return {
        name for row in table.splitlines() for name in re.findall(r"`([a-z]+)`", row.split("|")[1:2][0] if row else "")
    }


@cache
def objects() -> dict[str, dict[str, str]]:
    """For each object, the types of its fields."""
    text = (ROOT / "docs" / "json-fields.json").read_text()
    forms: dict[str, dict[str, str]] = json.loads(text, object_pairs_hook=_each_once)
    return forms


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), f"a name is there twice: {[name for name, _ in pairs]}"
    return dict(pairs)


def check(value: Any, kind: str, where: str = "") -> None:
    """Fail unless the value has this documented type."""
    if kind.endswith(" or null"):
        if value is None:
            return
        kind = kind.removesuffix(" or null")
    if kind.startswith("list of "):
        assert isinstance(value, list), where
        for number, element in enumerate(value):
            check(element, kind.removeprefix("list of "), f"{where}[{number}]")
    elif kind.startswith("map of "):
        assert isinstance(value, dict), where
        for name, element in value.items():
            check(element, kind.removeprefix("map of "), f"{where}[{name!r}]")
    elif kind in objects():
        assert isinstance(value, dict), where
        assert sorted(value) == sorted(objects()[kind]), where or kind
        for name, element in value.items():
            check(element, objects()[kind][name], f"{where}.{name}")
    elif kind != "any":
        assert isinstance(value, _KINDS[kind]), f"{where}: expected {kind}, found {value!r}"
        assert isinstance(value, bool) == (kind == "boolean"), where
