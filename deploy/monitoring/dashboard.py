"""Makes the dashboard for Grafana: python deploy/monitoring/dashboard.py > deploy/monitoring/dashboard.json"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

COLUMNS, HEIGHT = 24, 8
SERVER = 'instance=~"$inferencer"'
MODEL = f'{SERVER},model=~"$model"'
TRAINER = 'instance=~"$trainer"'


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot, or a number where `kind` is "stat". `queries` are PromQL by the legend of their series."""

    title: str
    unit: str
    queries: dict[str, str]
    says: str
    kind: str = "timeseries"
    width: int = 8
    warn: float | None = None


def _quantile(quantile: float, metric: str, labels: str, by: str) -> str:
    return f"histogram_quantile({quantile}, sum by (le, {by}) (rate({metric}_bucket{{{labels}}}[$__rate_interval])))"


def _rate(metric: str, labels: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


ROWS: dict[str, list[Panel]] = {
    "Now": [
        Panel(
            "Serving version",
            "none",
            {"{{model}}": f"paramsync_served_version{{{MODEL}}}"},
            "Absent while no version serves.",
            "stat",
            5,
        ),
        Panel(
            "Newest is not served for",
            "s",
            {"{{model}}": f"paramsync_lag_seconds{{{MODEL}}}"},
            "0 where the newest published version serves.",
            "stat",
            5,
            60,
        ),
        Panel(
            "Steps behind",
            "none",
            {"{{model}}": f"paramsync_lag_steps{{{MODEL}}}"},
            "From the version that serves to the newest published one.",
            "stat",
            4,
        ),
        Panel(
            "Age of answers",
            "s",
            {"{{model}}": f"paramsync_serving_age_seconds{{{MODEL}}}"},
            "Time since the training step that answers come from.",
            "stat",
            5,
            900,
        ),
        Panel(
            "In quarantine",
            "none",
            {"{{model}}": f"paramsync_quarantined_versions{{{MODEL}}}"},
            "Versions that cannot be used: `paramsync status` has the reasons.",
            "stat",
            5,
            1,
        ),
    ],
    "Freshness": [
        Panel(
            "Published and served step",
            "none",
            {
                "published": f"paramsync_trainer_published_step{{{TRAINER}}}",
                "served {{model}}": f"paramsync_served_step{{{MODEL}}}",
            },
            "The two lines lie on each other while the newest version serves.",
        ),
        Panel(
            "Lag, age of answers, time since a publication",
            "s",
            {
                "lag {{model}}": f"paramsync_lag_seconds{{{MODEL}}}",
                "age {{model}}": f"paramsync_serving_age_seconds{{{MODEL}}}",
                "since publication {{model}}": f"paramsync_since_publication_seconds{{{MODEL}}}",
            },
            "Age and time since a publication grow where a trainer is dead; the lag grows where a version is refused.",
        ),
        Panel(
            "Restores, swaps, quarantines",
            "cps",
            {
                "restores {{model}}": _rate("paramsync_restores_total", MODEL, "model"),
                "swaps {{model}}": _rate("paramsync_swaps_total", MODEL, "model"),
                "quarantines {{model}}": _rate("paramsync_quarantines_total", MODEL, "model"),
            },
            "Each version is restored once and swapped in once.",
        ),
        Panel(
            "Restore, median and 99th percentile",
            "s",
            {
                "p50 {{model}}": _quantile(0.5, "paramsync_restore_duration_seconds", MODEL, "model"),
                "p99 {{model}}": _quantile(0.99, "paramsync_restore_duration_seconds", MODEL, "model"),
            },
            "Time to bring a version into memory and check it.",
        ),
        Panel(
            "Swap, 99th percentile",
            "s",
            {"p99 {{model}}": _quantile(0.99, "paramsync_swap_duration_seconds", MODEL, "model")},
            "Time to have a version in memory serve.",
        ),
        Panel(
            "Resident versions, pins",
            "none",
            {
                "resident {{model}}": f"paramsync_resident_versions{{{MODEL}}}",
                "pinned {{model}}": f"paramsync_pinned{{{MODEL}}}",
            },
            "Versions that requests may name.",
        ),
    ],
    "Requests": [
        Panel(
            "Requests by version",
            "reqps",
            {"{{model}} {{version}}": _rate("paramsync_requests_total", f'{MODEL},code="OK"', "model, version")},
            "Of the eight versions that answered last; all others are `older`.",
        ),
        Panel(
            "Refused and failed, by code",
            "reqps",
            {"{{code}} {{protocol}}": _rate("paramsync_requests_total", f'{SERVER},code!="OK"', "code, protocol")},
            "Names of gRPC's codes, by HTTP too.",
        ),
        Panel(
            "Latency",
            "s",
            {
                f"p{name} {{{{model}}}}": _quantile(share, "paramsync_request_duration_seconds", MODEL, "model")
                for name, share in (("50", 0.5), ("99", 0.99), ("99.9", 0.999))
            },
            "From the arrival of a request to its answer.",
        ),
        Panel(
            "Latency by version, 99th percentile",
            "s",
            {"{{model}} {{version}}": _quantile(0.99, "paramsync_request_duration_seconds", MODEL, "model, version")},
            "A version that answers slower than the one before it shows here.",
        ),
        Panel(
            "Requests in a call",
            "none",
            {
                "{{model}}": f"{_rate('paramsync_batch_requests_sum', MODEL, 'model')}"
                f" / {_rate('paramsync_batch_requests_count', MODEL, 'model')}"
            },
            "Requests that wait together are computed together.",
        ),
        Panel(
            "Requests that wait",
            "none",
            {"{{instance}}": f"paramsync_queue_depth{{{SERVER}}}"},
            "What is beyond `--queue` is refused.",
        ),
    ],
    "Workers": [
        Panel(
            "Workers that answer",
            "none",
            {
                "{{instance}}": f"sum by (instance) (paramsync_worker_up{{{SERVER}}})",
                "failing {{instance}}": f"paramsync_workers_failing{{{SERVER}}}",
            },
            "One that ends is replaced; `failing` is 1 while one ends again and again.",
        ),
        Panel(
            "Restarts in ten minutes",
            "none",
            {
                "{{instance}} worker {{worker}}": f"increase(paramsync_worker_restarts_total{{{SERVER}}}[10m])",
            },
            "A worker ended and was replaced.",
        ),
        Panel(
            "Memory",
            "bytes",
            {
                "{{instance}} worker {{worker}}": f"paramsync_worker_resident_memory_bytes{{{SERVER}}}",
                "{{instance}} supervisor": f"process_resident_memory_bytes{{{SERVER}}}",
            },
            "Pages that workers share with the store and with each other are counted in each.",
        ),
    ],
    "Training": [
        Panel("Loss", "none", {"{{instance}}": f"paramsync_trainer_loss{{{TRAINER}}}"}, "Loss of the last step."),
        Panel(
            "Steps per second",
            "none",
            {"{{instance}}": _rate("paramsync_trainer_steps_total", TRAINER, "instance")},
            "Steps trained by this process.",
        ),
        Panel(
            "Publications",
            "cps",
            {
                name: _rate(f"paramsync_trainer_publications{suffix}_total", TRAINER, "instance")
                for name, suffix in (
                    ("published", ""),
                    ("skipped", "_skipped"),
                    ("failed", "_failed"),
                    ("refused", "_refused"),
                )
            },
            "Skipped: a newer one overtook it. Refused: its values were NaN or infinite.",
        ),
        Panel(
            "Last publication",
            "s",
            {
                "publish {{instance}}": f"paramsync_trainer_last_publish_duration_seconds{{{TRAINER}}}",
                "stall {{instance}}": f"paramsync_trainer_last_stall_duration_seconds{{{TRAINER}}}",
            },
            "From pinning values to the commit, and how long the training thread was held.",
        ),
        Panel(
            "Saved step",
            "none",
            {
                "trained": f"paramsync_trainer_step{{{TRAINER}}}",
                "saved": f"paramsync_trainer_saved_step{{{TRAINER}}}",
            },
            "Where training would resume.",
        ),
        Panel(
            "Publishing fails",
            "none",
            {"{{instance}}": f"paramsync_trainer_publishing_failing{{{TRAINER}}}"},
            "1 where the last publication failed or was refused.",
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row, plots in ROWS.items():
        panels.append(
            {
                "type": "row",
                "title": row,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            }
        )
        y += 1
        x = 0
        for plot in plots:
            height = 4 if plot.kind == "stat" else HEIGHT
            if x + plot.width > COLUMNS:
                x, y = 0, y + height
            panels.append(_panel(plot, {"x": x, "y": y, "w": plot.width, "h": height}))
            x += plot.width
        y += height
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "uid": "paramsync",
        "title": "paramsync",
        "tags": ["paramsync"],
        "schemaVersion": 39,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "panels": panels,
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                _variable("inferencer", "paramsync_build_info", "instance"),
                _variable("model", 'paramsync_model_state{instance=~"$inferencer"}', "model"),
                _variable("trainer", "paramsync_trainer_step", "instance"),
            ]
        },
    }


def _panel(plot: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if plot.warn is not None:
        steps.append({"color": "red", "value": plot.warn})
    defaults: dict[str, Any] = {"unit": plot.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if plot.kind == "timeseries":
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 5, "showPoints": "never"}
        if plot.title == "Loss":
            del defaults["min"]
    options: dict[str, Any] = (
        {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
        if plot.kind == "timeseries"
        else {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "textMode": "value_and_name"}
    )
    return {
        "type": plot.kind,
        "title": plot.title,
        "description": plot.says,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": query, "legendFormat": legend}
            for number, (legend, query) in enumerate(plot.queries.items())
        ],
    }


def _variable(name: str, metric: str, label: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "definition": query,
        "query": {"query": query, "refId": "A"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=1) + "\n")
