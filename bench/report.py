"""The figures as a table for people and as one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paramsync.errors import SettingsError

_NOTHING = "-"


def show(figures: Mapping[str, Any], *, stderr: bool) -> None:
    """Print a headline, the figures, and the conditions of the measurement."""
    screen = Console(stderr=stderr, highlight=False)
    conditions = figures["conditions"]
    headline = f"{figures['benchmark']}: {figures['bytes'] / 1e6:.1f} MB, medians of {conditions['runs']} rounds"
    screen.print(headline, style="bold", soft_wrap=True)
    _SHOW[figures["benchmark"]](figures, screen)
    loads = " to ".join(f"{conditions[key][0]:.1f}" for key in ("load_average_before", "load_average_after"))
    where = f"files in {conditions['folder']} ({conditions['file_system']})"
    machine = f"{conditions['cpu']}, {conditions['cores']} cores, Linux {conditions['kernel']}"
    screen.print(f"{machine}, load average {loads}, {where}", style="dim", soft_wrap=True)


def write(figures: Mapping[str, Any], path: str) -> None:
    """Write the figures as one line of JSON to a file, or to the standard output for `-`. Raises SettingsError."""
    text = json.dumps(figures, allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise SettingsError(f"--json {path}: cannot be written: {error.strerror}") from error


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for at, column in enumerate(columns):
        table.add_column(column, justify="right" if at else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row, style="bold green" if row[0].startswith("ours") else "")
    return table


def _show_times(figures: Mapping[str, Any], screen: Console) -> None:
    """Show every measured time, the fastest first, and then the quotients."""
    samples, ours, memcpy = figures["samples_ms"], figures.get("ours_ms", figures["memcpy_ms"]), figures["memcpy_ms"]
    medians = sorted((figures[f"{name}_ms"], name) for name in samples if f"{name}_ms" in figures)
    rows = []
    for median, name in medians:
        times = (median, min(samples[name]), max(samples[name]), median / memcpy, median / ours)
        rows.append((name, *(f"{value:.2f}" for value in times)))
    screen.print(_table(("", "median ms", "fastest", "slowest", "x memcpy", "x ours"), rows))
    if sent := {key: value for key, value in figures.items() if key.startswith(("sent_", "plain_", "memory_"))}:
        screen.print(", ".join(f"{key} {value:.2f}" for key, value in sent.items()), soft_wrap=True)
    if phases := figures.get("phases"):
        screen.print(", ".join(f"{name} {value:.2f} ms" for name, value in phases.items()), soft_wrap=True)


def _show_stall(figures: Mapping[str, Any], screen: Console) -> None:
    screen.print(
        f"training on the {figures['device']}: a step takes {figures['step_ms']:.1f} ms; a copy "
        f"{figures['memcpy_ms']:.1f} ms, which is {figures['copy_share_pct']:.1f} % of the time",
        soft_wrap=True,
    )
    keys = ("stall_ms_p50", "stall_ms_p99", "over_ours", "inflation_pct")
    rows = [
        (name, *(f"{figures[f'{name}_{key}']:.2f}" if f"{name}_{key}" in figures else _NOTHING for key in keys))
        for name in figures["samples_pct"]
    ]
    screen.print(_table(("", "stall ms p50", "p99", "x ours", "steps slower %"), rows))


def _show_swap(figures: Mapping[str, Any], screen: Console) -> None:
    cases = figures["cases"]
    rows = (
        ("calls a second", "load_per_second", 0),
        ("versions a second", "versions_per_second", 1),
        *(
            (f"{window} {percentile} ms", f"{window}_{percentile}_ms", 2)
            for window in ("quiet", "swap", "copied")
            for percentile in ("p50", "p99", "p99_9")
        ),
        ("p99, swap / quiet", "ratio_p99", 2),
        ("p99, swap / copied", "over_copied_p99", 2),
        ("requests", "requests", 0),
        ("failed", "failed", 0),
        ("mixed", "mixed", 0),
    )
    cells = [(title, *(f"{case[key]:.{digits}f}" for case in cases.values())) for title, key, digits in rows]
    screen.print(_table(("", *cases), cells))


def _show_serve(figures: Mapping[str, Any], screen: Console) -> None:
    columns = ("callers x rows", "a second", "echo", "ours/echo", "grpcio", "p50 ms", "echo", "p99 ms", "echo")
    rows = [
        (
            f"{case['concurrency']} x {case['batch']}",
            f"{case['ours_per_second']:.0f}",
            f"{case['floor_per_second']:.0f}",
            f"{case['of_floor_rate']:.2f}",
            f"{case['grpcio_per_second']:.0f}",
            *(f"{case[f'{name}_p{percent}_ms']:.2f}" for percent in (50, 99) for name in ("ours", "floor")),
        )
        for case in figures["cases"].values()
    ]
    screen.print(_table(columns, rows))


def _show_workers(figures: Mapping[str, Any], screen: Console) -> None:
    counts = sorted(int(key.rpartition("c")[2]) for key in figures if key.startswith("n_over_1_c"))
    rows = []
    for count in counts:
        one, many = (figures[f"{name}_per_second_c{count}"] for name in ("1", "n"))
        rows.append((str(count), f"{one:.0f}", f"{many:.0f}", f"{figures[f'n_over_1_c{count}']:.2f}"))
    screen.print(_table(("callers", "1 worker", f"{figures['workers']} workers", "quotient"), rows))
    for line in (
        f"parameters in memory: {figures['pss_over_model']:.2f} times the model",
        f"a killed worker was replaced, and answered, after {figures['replaced_worker_s']:.2f} s",
        f"{figures['requests']} requests while versions came, up to {figures['newest']}: {figures['failed']} failed, "
        f"{figures['backwards']} answered by an older version than an earlier answer",
    ):
        screen.print(line, soft_wrap=True)


def _show_mirror(figures: Mapping[str, Any], screen: Console) -> None:
    if "samples_ms" in figures:
        _show_times(figures, screen)
    screen.width = max(screen.width, 120)  # cells that do not fit would be cut
    for part, rows in figures["rows"].items():
        screen.print(part, style="bold")
        cells = [[f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
        screen.print(_table(list(rows[0]), cells))


_SHOW = {
    "publish": _show_times,
    "restore": _show_times,
    "freshness": _show_times,
    "stall": _show_stall,
    "swap": _show_swap,
    "serve": _show_serve,
    "workers": _show_workers,
    "mirror": _show_mirror,
}
