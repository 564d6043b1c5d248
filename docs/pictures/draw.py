"""Draws the pictures of README and pages, for light and dark: the data's way, and the plots of figures.json, and of
peers.json, which `python -m bench peers --json docs/pictures/peers.json` wrote.

python docs/pictures/draw.py docs/pictures
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OURS = "paramsync"
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"


@dataclass(frozen=True)
class Theme:
    ink: str
    faint: str  # of what explains
    line: str
    box: str
    ours: str
    other: str


THEMES = {
    "light": Theme("#1f2328", "#59636e", "#8c959f", "#f6f8fa", "#0969da", "#afb8c1"),
    "dark": Theme("#e6edf3", "#9198a1", "#6e7681", "#161b22", "#4493f8", "#484f58"),
}


def pictures() -> Iterator[tuple[str, str]]:
    """The name of each file and what is in it."""
    for name, theme in THEMES.items():
        yield f"way-{name}.svg", way(theme)
        for plot, figures in json.loads((HERE / "figures.json").read_text()).items():
            yield f"{plot}-{name}.svg", bars(theme, figures)
        for plot, figures in peers(json.loads((HERE / "peers.json").read_text())["systems"]).items():
            yield f"{plot}-{name}.svg", bars(theme, figures)


def svg(wide: float, high: float, title: str, parts: list[str]) -> str:
    drawn = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" height="{high:g}"'
        f' font-family="{FONT}" font-size="13">\n<title>{escape(title)}</title>\n{drawn}\n</svg>\n'
    )


def text(x: float, y: float, said: str, colour: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}"{more}>{escape(said)}</text>'


# The data's way -------------------------------------------------------------------------------------------------------

MIDDLE = ' text-anchor="middle"'
SMALL = MIDDLE + ' font-size="12"'
BOLD = MIDDLE + ' font-weight="600" font-size="15"'


def way(theme: Theme) -> str:
    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        f' orient="auto-start-reverse"><path d="M0,0L8,4L0,8z" fill="{theme.line}"/></marker></defs>'
    ]
    stages = [
        ("trainer", "GPU or CPU", "pins the values of a step,", "copies none; writes them", "behind training"),
        ("store", "one directory", "TensorFlow checkpoints;", "the rename of checkpoint", "publishes version 420"),
        ("inferencer", "CPU", "maps version 420, checks", "it aside, swaps it in by", "one assignment"),
        ("callers", "gRPC, HTTP, Python", "TensorFlow Serving,", "KServe v2, REST, or", "your own program"),
    ]
    for number, (name, where, *lines) in enumerate(stages):
        left = 4 + number * 236
        centre = left + 92
        parts.append(
            f'<rect x="{left}" y="20" width="184" height="134" rx="8" fill="{theme.box}" stroke="{theme.line}"/>'
        )
        parts.append(text(centre, 46, name, theme.ours, BOLD))
        parts.append(text(centre, 66, where, theme.faint, SMALL))
        parts += [text(centre, 94 + 20 * row, line, theme.ink, MIDDLE) for row, line in enumerate(lines)]
    for number, said in enumerate(["write", "map", "ask"]):
        left = 192 + number * 236
        both = ' marker-start="url(#tip)"' if said == "ask" else ""
        parts.append(arrow(theme, f"M{left},87H{left + 44}", both))
        parts.append(text(left + 22, 78, said, theme.faint, SMALL))
    parts.append(text(686, 106, "420", theme.ours, SMALL))
    parts.append(f'<rect x="240" y="226" width="420" height="62" rx="8" fill="{theme.box}" stroke="{theme.line}"/>')
    parts.append(text(450, 251, "operator", theme.ours, BOLD))
    parts.append(text(450, 273, "sees what is trained, published and served, and how far apart", theme.ink, SMALL))
    parts.append(arrow(theme, "M240,257H96V158", ""))
    parts.append(arrow(theme, "M568,226V158", ' marker-start="url(#tip)"'))
    parts.append(text(104, 200, "publish now", theme.faint, ' font-size="12"'))
    parts.append(text(576, 194, "sync, pin, roll back, label", theme.faint, ' font-size="12"'))
    return svg(900, 300, "From the trainer to the store, the inferencer and its callers", parts)


def arrow(theme: Theme, path: str, more: str) -> str:
    return f'<path d="{path}" fill="none" stroke="{theme.line}" stroke-width="1.5" marker-end="url(#tip)"{more}/>'


# Plots ----------------------------------------------------------------------------------------------------------------

WIDE, ROW, NAMES = 900.0, 22.0, 210.0


def bars(theme: Theme, figures: Mapping[str, str | Mapping[str, Mapping[str, float]]]) -> str:
    """Panels side by side, a bar for each name, each panel with a scale of its own that begins at 0."""
    title, panels = str(figures["title"]), figures["panels"]
    assert isinstance(panels, dict)
    names = list(next(iter(panels.values())))
    each = (WIDE - NAMES) / len(panels)
    parts = [text(0, 18, title, theme.ink, ' font-size="15" font-weight="600"')]
    for row, name in enumerate(names):
        shown = theme.ours if name.startswith(OURS) else theme.ink
        parts.append(text(NAMES - 10, 70 + row * ROW, name, shown, ' text-anchor="end"'))
    for number, (said, values) in enumerate(panels.items()):
        left, room = NAMES + number * each, each - 70
        parts.append(text(left, 44, said, theme.faint, ' font-size="12"'))
        for row, name in enumerate(names):
            long = max(1.5, room * values[name] / max(values.values()))
            fill = theme.ours if name.startswith(OURS) else theme.other
            top = 57 + row * ROW
            parts.append(f'<rect x="{left:g}" y="{top:g}" width="{long:.1f}" height="16" rx="2" fill="{fill}"/>')
            parts.append(text(left + long + 6, top + 13, f"{values[name]:,}", theme.ink, ' font-size="12"'))
    return svg(WIDE, 66 + len(names) * ROW, title, parts)


def peers(systems: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The plots of what `bench peers` measured, as `bars` takes them."""

    def panel(value: Callable[[Mapping[str, Any]], float], part: str = "cases") -> dict[str, float]:
        return {system["title"]: rounded(value(system)) for system in systems.values() if system[part]}

    return {
        "peers": {
            "title": "784-256-256-10 on one host, one row a request",
            "panels": {
                "64 callers: answers a second": panel(lambda system: system["cases"]["c64_b1"]["rate"]),
                "64 callers: p99, ms": panel(lambda system: system["cases"]["c64_b1"]["p99_ms"]),
                "one caller: p50, ms": panel(lambda system: system["cases"]["c1_b1"]["p50_ms"]),
            },
        },
        "peers-updates": {
            "title": "268 MB, updated once a second, each at the same share of its capacity",
            "panels": {
                "left alone: p99, ms": panel(lambda system: system["update"]["quiet"]["p99_ms"], "update"),
                "updated: p99, ms": panel(lambda system: system["update"]["update"]["p99_ms"], "update"),
                "quotient": panel(lambda system: system["update"]["p99_over_quiet"], "update"),
            },
        },
    }


def rounded(value: float) -> float:
    """To three digits."""
    found = float(f"{value:.3g}")
    return int(found) if found >= 100 else found


def main(folder: str) -> None:
    for name, drawn in pictures():
        (Path(folder) / name).write_text(drawn)


if __name__ == "__main__":
    main(*sys.argv[1:])
