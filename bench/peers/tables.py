"""The tables of docs/peers.md, from the figures: `python -m bench.peers.tables docs/pictures/peers.json docs/peers.md`.

It writes what stands between the page's two markers anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_BEGIN, _END = "<!-- from peers.json -->", "<!-- as far as here -->"
_QUOTIENTS = ("rate_over_{}_c64", "latency_over_{}_c1")


def page(text: str, figures: Mapping[str, Any]) -> str:
    """The page with the tables of these figures."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n" + "\n\n".join(_parts(figures)) + f"\n\n{_END}{after}"


def _parts(figures: Mapping[str, Any]) -> Iterator[str]:
    conditions, systems = figures["conditions"], figures["systems"]
    loads = " to ".join(f"{conditions[key][0]:.1f}" for key in ("load_average_before", "load_average_after"))
    rounds = max(len(samples["c64_b1"]) for samples in figures["rates"].values())
    yield (
        f"{conditions['cpu']}, {figures['processors']} processors, {conditions['memory']}, Linux"
        f" {conditions['kernel']}, {conditions['time'][:10]}; medians of {rounds} rounds; called by"
        f" `{figures['load_generator']}`; load average of the last piece {loads}."
    )
    yield "## Against each"
    yield _table(
        [
            "",
            "64 callers: our rate over theirs",
            "one caller: our latency over theirs",
            "theirs, updated over quiet p99",
        ],
        (_compared(figures, peer) for peer in systems if f"rate_over_{peer}_c64" in figures),
    )
    ours = figures["update_p99_over_quiet"]
    yield f"Ours, updated over quiet p99: {_number(ours)}. In bold: where the peer wins."
    for batch, rows in ((1, "One row a request"), (32, "32 rows a request")):
        yield f"## {rows}"
        yield _table(
            ["callers", *(f"{count}: {what}" for count in (1, 8, 64) for what in ("a second", "p50 ms", "p99 ms"))],
            (
                [system["title"], *_numbers(system["cases"][f"c{count}_b{batch}"] for count in (1, 8, 64))]
                for system in systems.values()
            ),
        )
    yield f"## {figures['bytes'] / 1e6:.0f} MB, updated once a second"
    yield _table(
        ["", "capacity", "calls a second", "versions a second", "publishing ms", "quiet p50 ms", "p99", "updated p50",
         "p99", "p99, quotient", "failed"],
        ([system["title"], *_updated(system["update"])] for system in systems.values() if system["update"]),
    )  # fmt: skip
    for peer, reason in figures["absent"].items():
        yield f"`{peer}` was not measured: {reason}."


def _compared(figures: Mapping[str, Any], peer: str) -> list[str]:
    rate, latency = (figures[key.format(peer)] for key in _QUOTIENTS)
    update = figures[f"{peer}_update_p99_over_quiet"]
    ours = figures["update_p99_over_quiet"]
    wins = (rate < 1, latency > 1, update is not None and update < ours)
    shown = [
        f"**{_number(value)}**" if won else _number(value)
        for value, won in zip((rate, latency, update), wins, strict=True)
    ]
    return [figures["systems"][peer]["title"], *shown]


def _numbers(cases: Iterable[Mapping[str, float]]) -> list[str]:
    return [_number(case[key]) for case in cases for key in ("rate", "p50_ms", "p99_ms")]


def _updated(update: Mapping[str, Any]) -> list[str]:
    keys = ("capacity_per_second", "load_per_second", "versions_per_second", "publish_ms")
    windows = [update[name][key] for name in ("quiet", "update") for key in ("p50_ms", "p99_ms")]
    return [_number(value) for value in (*(update[key] for key in keys), *windows, update["p99_over_quiet"])] + [
        str(update["failed"])
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(figures: str, written: str) -> None:
    path = Path(written)
    path.write_text(page(path.read_text(), json.loads(Path(figures).read_text())))


if __name__ == "__main__":
    main(*sys.argv[1:])
