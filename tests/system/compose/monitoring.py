"""The Prometheus of a stack, asked as Grafana asks it, from inside of the composition, and at its published port."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import yaml

from tests.support.programs import PATIENCE
from tests.support.prometheus import DEPLOYED, queries
from tests.system.compose.stack import Stack

# Run in a container: which queries have no data in the Prometheus at this URL, after so many seconds at most.
_ASK = """
import json, sys, time, urllib.parse, urllib.request
url, seconds, *missing = sys.argv[1:]
deadline = time.monotonic() + float(seconds)
def has_data(query):
    asked = urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(f"{url}/api/v1/query?{asked}", timeout=10) as answer:
        return json.load(answer)["data"]["result"]
while missing := [query for query in missing if not has_data(query)]:
    if time.monotonic() > deadline:
        break
    time.sleep(0.5)
print(json.dumps(missing))
"""


def wait_for_the_dashboard(stack: Stack) -> int:
    """Waits until every query of the dashboard has data at the URL that Grafana is given. How many there are."""
    [source] = yaml.safe_load((DEPLOYED / "grafana" / "datasource.yml").read_text())["datasources"]
    asked = queries(rate_interval="20s")  # as Grafana chooses it where each 5 seconds are scraped
    ask = ("exec", "-T", "inferencer", "python3", "-c", _ASK, source["url"], str(PATIENCE), *asked)
    missing = json.loads(stack.compose(*ask, timeout=2 * PATIENCE))
    assert missing == []
    return len(asked)


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
