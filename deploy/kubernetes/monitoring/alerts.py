"""Makes alerts.yaml, the PrometheusRule of the same alerts; `make manifests` runs it."""

from __future__ import annotations

import sys
from pathlib import Path

HEAD = """\
# Made by deploy/kubernetes/monitoring/alerts.py from deploy/monitoring/alerts.yml: change that file.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: paramsync
spec:
"""


def rules(alerts: str) -> str:
    groups = alerts[alerts.index("groups:\n") :]
    return HEAD + "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))


if __name__ == "__main__":
    sys.stdout.write(rules((Path(__file__).parents[2] / "monitoring" / "alerts.yml").read_text()))
