"""Pictures and charts made of characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.color import Color
from rich.style import Style
from rich.text import Text

_LEVELS = " ▁▂▃▄▅▆▇█"
_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
_GRAYS = 12  # more cannot be told apart, and fewer styles are quicker to draw


def picture(image: np.ndarray, *, shades: bool) -> Text:
    """A square picture of values in 0..1, two pixels above each other to a character; in black and white on demand."""
    side = int(image.size**0.5)
    pixels = image.reshape(side, side)
    lines = [_shaded(*pair) if shades else _outlined(*pair) for pair in zip(pixels[::2], pixels[1::2], strict=True)]
    return Text("\n").join(lines)


def chart(values: Sequence[float], *, width: int, height: int) -> Text:
    """Values in 0..1 as bars, oldest left. More values than columns: evenly picked, the last one always among them."""
    count = len(values)
    picked = values if count <= width else [values[(column + 1) * count // width - 1] for column in range(width)]
    steps = height * (len(_LEVELS) - 1)
    filled = [max(1, round(min(1.0, max(0.0, value)) * steps)) for value in picked]
    return Text("\n").join(Text(_bars(filled, floor=8 * row), "green") for row in reversed(range(height)))


def _bars(filled: Sequence[int], *, floor: int) -> str:
    return "".join(_LEVELS[min(8, max(0, value - floor))] for value in filled)


def _shaded(upper: np.ndarray, lower: np.ndarray) -> Text:
    line = Text()
    for above, below in zip(upper, lower, strict=True):
        line.append("▀", Style(color=_gray(above), bgcolor=_gray(below)))
    return line


def _outlined(upper: np.ndarray, lower: np.ndarray) -> Text:
    return Text(
        "".join(_HALVES[bool(above > 0.5), bool(below > 0.5)] for above, below in zip(upper, lower, strict=True))
    )


def _gray(value: float) -> Color:
    level = round(round(float(np.clip(value, 0, 1)) * _GRAYS) * 255 / _GRAYS)
    return Color.from_rgb(level, level, level)
