"""Draws a flame graph from folded stacks, as py-spy and perf make them: `flame.py TITLE < STACKS > PICTURE.svg`.

Each line is a stack, from the outermost function to the innermost, and how often it was seen. Functions that were seen
in less than a two-hundredth of all samples are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

WIDTH, ROW, LETTER = 1200, 17, 6.6  # pixels; a letter of 11 px is that wide
LEAST = 1 / 200
COLOURS = (  # by what a function belongs to, the first that fits
    ("grpc", "#8fb8de"),
    ("inferencer|paramsync", "#f2a65a"),
    ("tensorflow|Eigen|tsl|MatMul", "#9ccc9c"),
    ("asyncio|selectors|threading", "#d8c4e8"),
    ("", "#d9d9d9"),
)


@dataclass
class Frame:
    count: int = 0
    callees: dict[str, Frame] = field(default_factory=dict)


def read(lines: Iterator[str]) -> Frame:
    whole = Frame()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frame = whole
        frame.count += int(count)
        for name in stack.split(";"):
            frame = frame.callees.setdefault(name, Frame())
            frame.count += int(count)
    return whole


def boxes(frame: Frame, whole: int, left: float = 0, depth: int = 0) -> Iterator[tuple[str, int, float, int]]:
    for name, callee in sorted(frame.callees.items()):
        if callee.count >= whole * LEAST:
            yield name, callee.count, left, depth
            yield from boxes(callee, whole, left, depth + 1)
        left += callee.count / whole * WIDTH


def draw(title: str, whole: Frame) -> str:
    drawn = list(boxes(whole, whole.count))
    height = (max(depth for *_, depth in drawn) + 3) * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        ' font-size="11">',
        f'<rect width="100%" height="100%" fill="#fff"/><text x="4" y="13" font-weight="bold">{escape(title)}</text>',
    ]
    for name, count, left, depth in drawn:
        width, top = count / whole.count * WIDTH, height - (depth + 1) * ROW
        colour = next(colour for pattern, colour in COLOURS if re.search(pattern, name))
        share = f"{count / whole.count:.1%}"
        letters = int((width - 4) / LETTER)
        text = escape(name[:letters]) if letters > 2 else ""
        lines.append(
            f'<g><title>{escape(name)} {share}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}"'
            f' height="{ROW - 1}" fill="{colour}"/><text x="{left + 2:.1f}" y="{top + 12}">{text}</text></g>'
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(draw(sys.argv[1], read(iter(sys.stdin.read().splitlines()))))
