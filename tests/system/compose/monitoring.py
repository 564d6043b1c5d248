"""The Prometheus of a stack, asked at its published port."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from tests.system.compose.stack import Stack


def alerts(stack: Stack) -> set[str]:
    """The names of the alerts that it evaluates."""
    return {rule["name"] for group in _ask(stack, "rules")["groups"] for rule in group["rules"]}


def scraped(stack: Stack) -> set[str]:
    """What it has reached when it last scraped it."""
    targets = _ask(stack, "targets")["activeTargets"]
    return {target["scrapeUrl"] for target in targets if target["health"] == "up"}


def _ask(stack: Stack, what: str) -> Any:
    address = stack.address("PARAMSYNC_PROMETHEUS_PORT")
    with urllib.request.urlopen(f"http://{address}/api/v1/{what}", timeout=10) as answer:
        return json.load(answer)["data"]
