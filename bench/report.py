"""What came out, as a table for people and as one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.options import CALLS, SAVINGS
from bench.settings import NOT_ASKED_FOR
from paramsync.cli.formatting import NOTHING, console
from paramsync.errors import SettingsError


def show(figures: Mapping[str, Any], *, stderr: bool) -> None:
    """What came out, then the conditions."""
    screen = console(stderr=stderr)
    conditions = figures["conditions"]
    _SHOWN.get(figures["benchmark"], _show_times)(figures, conditions, screen)
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


def _show_times(figures: Mapping[str, Any], conditions: Mapping[str, Any], screen: Console) -> None:
    """Every time measured, the fastest first, then the quotients."""
    frozen = f" ({conditions['frozen_pct']} % frozen)" if conditions["frozen_pct"] else ""
    _headline(
        f"{figures['benchmark']}: {figures['bytes'] / 1e6:.1f} MB in {conditions['tensors']} tensors{frozen}, "
        f"medians of {conditions['runs']} rounds, files in {conditions['folder']} ({conditions['file_system']})",
        screen,
    )
    screen.print(_times(figures))
    for key, value in figures.items():
        if ("_over_" in key and not key.endswith("_over_ours")) or key.endswith("_ratio"):
            screen.print(f"{key}: {NOTHING if value is None else f'{value:.3g}'}")
    if phases := figures.get("phases"):
        screen.print(", ".join(f"{name} {value:.2f} ms" for name, value in phases.items()), soft_wrap=True)


def _headline(text: str, screen: Console) -> None:
    screen.print(text, style="bold", soft_wrap=True)


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


def _show_start(figures: Mapping[str, Any], conditions: Mapping[str, Any], screen: Console) -> None:
    _headline(
        f"start: {figures['first_answer_ms']:.0f} ms to the first answer from {figures['bytes'] / 1e6:.1f} MB, "
        f"{figures['beyond_import_ms']:.0f} ms beyond the {figures['import_tensorflow_ms']:.0f} ms that importing "
        f"TensorFlow takes, medians of {conditions['runs']} rounds",
        screen,
    )


def _show_workers(figures: Mapping[str, Any], conditions: Mapping[str, Any], screen: Console) -> None:
    _headline(f"workers: {figures['workers']} against 1, called by {figures['load_generator']}", screen)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("callers", "1 worker", f"{figures['workers']} workers", "quotient"):
        table.add_column(column, justify="right")
    for count in (1, 8, 64):
        rates = (f"{figures[f'{name}_per_second_c{count}']:.0f}" for name in ("1", "n"))
        table.add_row(str(count), *rates, f"{figures[f'n_over_1_c{count}']:.2f}")
    screen.print(table)
    for line in (
        f"parameters in memory: {figures['pss_over_model']:.2f} times the model",
        f"a worker that ended was replaced, and answered, after {figures['replaced_worker_s']:.2f} s",
        f"{figures['requests']} requests while versions came, up to {figures['newest']}: {figures['failed']} failed, "
        f"{figures['backwards']} answered by an older version than one that had answered before",
    ):
        screen.print(line, soft_wrap=True)


def _show_tls(figures: Mapping[str, Any], conditions: Mapping[str, Any], screen: Console) -> None:
    _headline(f"tls: answers a second, called by {figures['load_generator']}", screen)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("callers", "in plain", "by TLS", "quotient"):
        table.add_column(column, justify="right")
    for count in (1, 8, 64):
        rates = (f"{figures[f'{name}_per_second_c{count}']:.0f}" for name in ("plain", "tls"))
        table.add_row(str(count), *rates, f"{figures[f'tls_over_plain_c{count}']:.2f}")
    screen.print(table)


def _show_swaps(figures: Mapping[str, Any], conditions: Mapping[str, Any], screen: Console) -> None:
    _headline(f"swap: {figures['bytes'] / 1e6:.1f} MB, answers while versions are swapped in", screen)
    screen.print(_swaps(figures["cases"]))


def _swaps(cases: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in cases:
        table.add_column(name, justify="right")
    for what, key, digits in (
        ("calls a second", "load_per_second", 0),
        ("versions a second", "versions_per_second", 1),
        *(
            (f"{when} {one} ms", f"{when}_{one}_ms", 2)
            for when in ("quiet", "swap", "copied")
            for one in ("p50", "p99", "p99_9")
        ),
        ("p99, swap / quiet", "ratio_p99", 2),
        ("p99, swap / copied", "over_copied_p99", 2),
        ("requests", "requests", 0),
        ("failed", "failed", 0),
        ("mixed", "mixed", 0),
    ):
        table.add_row(what, *(f"{case[key]:.{digits}f}" for case in cases.values()))
    return table


def _show_memory(figures: Mapping[str, Any], conditions: Mapping[str, Any], screen: Console) -> None:
    resident = figures["resident_mb"]
    for line in (
        f"memory: {figures['bytes'] / 1e6:.1f} MB of parameters, {figures['swaps']} swaps, "
        f"{figures['swaps_per_second']:.1f} a second",
        f"resident {resident['early']:.0f} MB early, {resident['late']:.0f} MB late: {figures['growth_pct']:+.2f} %",
        f"at most {resident['peak']:.0f} MB, which is {figures['peak_over_model']:.2f} times the model beyond the "
        f"{figures['own_mb']:.0f} MB of a server of tiny parameters",
        f"a second server takes {figures['second_pct']:.2f} % of the model beyond what it takes with tiny parameters",
    ):
        screen.print(line, soft_wrap=True)


def _show_stalls(figures: Mapping[str, Any], conditions: Mapping[str, Any], screen: Console) -> None:
    """A table for each size and pace."""
    _headline(
        f"stall: training on the {figures['device']}, {conditions['tensors']} variables, "
        f"{conditions['runs']} rounds, files in {conditions['folder']} ({conditions['file_system']})",
        screen,
    )
    for name, case in figures["cases"].items():
        screen.print(
            f"{name}: a step takes {case['step_ms']:.1f} ms; a copy {case['memcpy_ms']:.1f} ms, which is "
            f"{case['copy_share_pct']:.1f} % of the time",
            soft_wrap=True,
        )
        screen.print(_stalls(case))


def _stalls(case: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for column in ("held ms p50", "p99", "x ours", "steps slower %"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in ("ours", *SAVINGS):
        figures = [case.get(f"{name}_{key}") for key in ("stall_ms_p50", "stall_ms_p99", "over_ours", "inflation_pct")]
        cells = [NOTHING if one is None else f"{one:.2f}" for one in figures]
        table.add_row(name, *cells, style="bold green" if name == "ours" else "")
    return table


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


def _show_calls(figures: Mapping[str, Any], conditions: Mapping[str, Any], screen: Console) -> None:
    _headline(f"call: microseconds of a call, medians of {conditions['runs']} rounds", screen)
    screen.print(_calls(figures["cases"]))
    for name, case in figures["cases"].items():
        found = {key: value for key, value in case.items() if key.endswith(("_over_ours", "first_call_ms"))}
        listed = ", ".join(f"{key} {value:.3g}" for key, value in found.items() if value is not None)
        if listed:
            screen.print(f"{name}: {listed}", soft_wrap=True)


def _show_serve(figures: Mapping[str, Any], conditions: Mapping[str, Any], screen: Console) -> None:
    _headline(f"serve: 784-256-256-10 over gRPC beside gRPC alone, medians of {conditions['runs']} rounds", screen)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("callers x rows", no_wrap=True)
    for column in ("a second", "alone", "share", "p50 us", "alone", "times", "p99 us", "alone"):
        table.add_column(column, justify="right", no_wrap=True)
    for case in figures["cases"].values():
        table.add_row(
            f"{case['concurrency']} x {case['batch']}",
            f"{case['ours_per_second']:.0f}",
            f"{case['floor_per_second']:.0f}",
            f"{case['of_floor_rate']:.2f}",
            f"{case['ours_p50_us']:.0f}",
            f"{case['floor_p50_us']:.0f}",
            f"{case['over_floor']:.2f}",
            f"{case['ours_p99_us']:.0f}",
            f"{case['floor_p99_us']:.0f}",
        )
    screen.print(table)


def _show_exported(figures: Mapping[str, Any], conditions: Mapping[str, Any], screen: Console) -> None:
    _headline(
        f"exported: 784-256-256-10 for {figures['concurrency']} callers, {figures['exported_per_second']:.0f} answers a"
        f" second as an export, {figures['published_per_second']:.0f} as published:"
        f" {figures['exported_of_published']:.2f}, medians of {conditions['runs']} rounds",
        screen,
    )


def _show_peers(figures: Mapping[str, Any], conditions: Mapping[str, Any], screen: Console) -> None:
    _headline(
        f"peers: 784-256-256-10, one row, and {figures['bytes'] / 1e6:.0f} MB once a second at {figures['load']:.0%} of"
        f" capacity, {figures['processors']} processors, called by {figures['load_generator']}",
        screen,
    )
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("", overflow="fold")
    for column in ("1 caller, p50 ms", "64: a second", "p99 ms", "quiet p99 ms", "updating", "quotient"):
        table.add_column(column, justify="right")
    for system in figures["systems"].values():
        one, many, update = system["cases"]["c1_b1"], system["cases"]["c64_b1"], system["update"]
        shown = [f"{one['p50_ms']:.2f}", f"{many['rate']:.0f}", f"{many['p99_ms']:.1f}"]
        if update:
            shown += [f"{update[name]['p99_ms']:.2f}" for name in ("quiet", "update")]
            shown.append(f"{update['p99_over_quiet']:.2f}")
        table.add_row(system["title"], *shown)
    screen.print(table)


_SHOWN = {
    "peers": _show_peers,
    "exported": _show_exported,
    "serve": _show_serve,
    "call": _show_calls,
    "stall": _show_stalls,
    "swap": _show_swaps,
    "workers": _show_workers,
    "tls": _show_tls,
    "memory": _show_memory,
    "start": _show_start,
}
"""Those that are not times beside each other."""
