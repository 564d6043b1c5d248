"""Objects that are not Kubernetes' own: their makers' schemas take them. `make schemas` installs the schemas.

Schemas from npm do not refuse unknown fields, so the names of fields are compared with those that they know.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project.test_kubernetes import OTHERS
from tests.support.kubectl import KUBERNETES, VARIANTS, Document, variant

pytestmark = pytest.mark.slow
INSTALLED = Path(sys.prefix) / "schemas"
PACKAGES = {
    "gateway.networking.k8s.io": "gateway-api",
    "argoproj.io": "argo-rollouts",
    "monitoring.coreos.com": "prometheus-operator",
}
KSERVE = "serving.kserve.io"
VALIDATE = """
import { readFileSync } from "node:fs";
const [path, kind] = process.argv.slice(1);
const models = await import(path);
new models[kind](JSON.parse(readFileSync(0))).validate();
"""


def group(document: Document) -> str:
    return str(document["apiVersion"].partition("/")[0])


def others() -> list[Any]:
    example = yaml.safe_load((KUBERNETES / "kserve" / "digits.yaml").read_text())
    found = [example] + [one for name in VARIANTS for one in variant(name) if one["kind"] in OTHERS]
    by_name = {f"{one['kind']}-{one['metadata']['name']}": one for one in found}
    return [pytest.param(one, id=name) for name, one in by_name.items()]


def names(value: Any) -> Iterator[str]:
    """The names of all fields within a value."""
    if isinstance(value, dict):
        yield from value
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from names(below)


@cache
def known(package: str) -> set[str]:
    """The names of fields in the schemas of a package."""
    files = [*(INSTALLED / "node_modules/@kubernetes-models" / package / "_schemas").glob("*.js")]
    assert files, "the schemas are not installed: make schemas"
    return {name for file in files for name in re.findall(r"\bdata\d*\.(\w+)", file.read_text())}


@pytest.mark.parametrize("document", [one for one in others() if group(one.values[0]) != KSERVE])
def test_its_schema_takes_it(document: Document) -> None:
    package = PACKAGES[group(document)]
    module = f"@kubernetes-models/{package}/{document['apiVersion']}/{document['kind']}"
    command = ["node", "--input-type=module", "--eval", VALIDATE, module, document["kind"]]
    done = subprocess.run(
        command, cwd=INSTALLED, input=json.dumps(document), text=True, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    labelled = {"matchLabels", "labels", "annotations"}
    spec = json.loads(
        json.dumps(document["spec"]), object_hook=lambda one: {k: v for k, v in one.items() if k not in labelled}
    )
    assert {*names(spec)} - known(package) == set()


@cache
def fields(model: str) -> dict[str, str]:
    """The types of the fields of a class of KServe's package."""
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", model).lower()
    path = INSTALLED / "kserve" / "models" / f"{snake}.py"
    assert path.exists(), "the schemas are not installed: make schemas"
    found = {
        target.id: ast.literal_eval(statement.value)
        for statement in ast.walk(ast.parse(path.read_text()))
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id in ("openapi_types", "attribute_map")
    }
    return {found["attribute_map"][name]: kind for name, kind in found["openapi_types"].items()}


def check(value: Any, kind: str) -> None:
    """KServe's classes have these fields; those of Kubernetes are checked with the pod."""
    if inner := re.fullmatch(r"list\[(\w+)\]", kind):
        for one in value:
            check(one, inner[1])
    elif re.match(r"V1(alpha|beta)\d", kind):
        types = fields(kind)
        assert value.keys() <= types.keys(), kind
        for name, below in value.items():
            check(below, types[name])
    elif kind in ("str", "int", "bool"):
        assert type(value).__name__ == kind


@pytest.mark.parametrize("document", [one for one in others() if group(one.values[0]) == KSERVE])
def test_kserve_has_its_fields(document: Document) -> None:
    version = document["apiVersion"].rpartition("/")[2]
    check(document, f"V{version[1:]}{document['kind']}")
