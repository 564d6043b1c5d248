"""What came out, as a table for people and as one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.settings import CALLS, NOT_ASKED_FOR
from paramsync.cli.wording import NOTHING, console
from paramsync.errors import SettingsError


def show(figures: Mapping[str, Any], *, stderr: bool) -> None:
    """Every time measured, the fastest first, then the quotients and the conditions."""
    screen = console(stderr=stderr)
    conditions = figures["conditions"]
    if "cases" in figures:
        screen.print(f"call: microseconds of a call, medians of {conditions['runs']} rounds", style="bold")
        screen.print(_calls(figures["cases"]))
        _show_calls(figures, screen)
    else:
        screen.print(
            f"{figures['benchmark']}: {figures['bytes'] / 1e6:.1f} MB in {conditions['tensors']} tensors, "
            f"medians of {conditions['runs']} rounds, files in {conditions['folder']} ({conditions['file_system']})",
            style="bold",
            soft_wrap=True,
        )
        screen.print(_times(figures))
        _show_quotients(figures, screen)
    loads = " to ".join(f"{conditions[key][0]:.1f}" for key in ("load_average_before", "load_average_after"))
    screen.print(
        f"{conditions['cpu']}, {conditions['cores']} cores, Linux {conditions['kernel']}, load average {loads}",
        style="dim",
        soft_wrap=True,
    )


def write(figures: Mapping[str, Any], path: str) -> None:
    """One line to a file or, for `-`, to the standard output. Raises SettingsError where that cannot be written."""
    text = json.dumps(figures, allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise SettingsError(f"--json {path}: cannot be written: {error.strerror}") from error


def _times(figures: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("what", overflow="fold")
    for column in ("median ms", "fastest", "slowest", "x memcpy", "x ours"):
        table.add_column(column, justify="right", no_wrap=True)
    medians = {key.removesuffix("_ms"): value for key, value in figures.items() if key.endswith("_ms")}
    del medians["samples"]
    ours, memcpy = medians["ours"], medians["memcpy"]
    for name, median in sorted(medians.items(), key=lambda item: (item[1] is None, item[1] or 0.0)):
        if figures["absent"].get(name) == NOT_ASKED_FOR:
            continue
        if median is None:
            table.add_row(name, *[NOTHING] * 5, style="dim")
            continue
        samples = figures["samples_ms"][name]
        times = (median, min(samples), max(samples))
        cells = [*(f"{one:.2f}" for one in times), f"{median / memcpy:.2f}", f"{median / ours:.2f}"]
        table.add_row(name, *cells, style="bold green" if name.startswith("ours") else "")
    return table


def _show_quotients(figures: Mapping[str, Any], screen: Console) -> None:
    for key, value in figures.items():
        if ("_over_" in key and not key.endswith("_over_ours")) or key.endswith("_ratio"):
            screen.print(f"{key}: {NOTHING if value is None else f'{value:.3g}'}")


def _calls(cases: Mapping[str, Mapping[str, Any]]) -> Table:
    """A column for each case: how many parameters, and by how many threads at once."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name, case in cases.items():
        what = "embedding" if name.startswith("embedding") else f"{case['parameters']}"
        table.add_column(f"{what} x{case['threads']}", justify="right")
    for name in ("ours", *CALLS):
        times = [case[f"{name}_us"] for case in cases.values()]
        cells = [NOTHING if one is None else f"{one:.1f}" for one in times]
        table.add_row(name, *cells, style="bold green" if name == "ours" else "")
    return table


def _show_calls(figures: Mapping[str, Any], screen: Console) -> None:
    for name, case in figures["cases"].items():
        found = {key: value for key, value in case.items() if key.endswith(("_over_ours", "first_call_ms"))}
        listed = ", ".join(f"{key} {value:.3g}" for key, value in found.items() if value is not None)
        if listed:
            screen.print(f"{name}: {listed}", soft_wrap=True)
