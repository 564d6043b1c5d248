"""Draws pictures of the digits 0 to 9, 28 x 28 pixels, no two alike. The same seed draws the same pictures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

SIDE = 28
_FIELD = 64  # points on a side of a distance field, which covers the unit square and a margin
_MARGIN = 0.25  # width of the margin around the unit square
_CHUNK = 500  # glyphs drawn at a time, so that the arrays stay in the processor's cache
_NOISE = 0.15  # standard deviation of the noise of a pixel
_PIXELS = ((np.arange(SIDE) + 0.5) / SIDE - 0.5).astype(np.float32)  # centres of the pixels, from -0.5 to 0.5

Floats = npt.NDArray[np.float32]
_Stroke = list[tuple[float, float]]


def draw(count: int, *, seed: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return `count` glyphs as float32 [count, 784] in 0..1, and their labels as int64 [count].

    Each glyph is shifted, rotated, slanted, stretched and bent at random, with a random pen and ink, and noise.
    """
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    images = np.empty((count, SIDE * SIDE), np.float32)
    for start in range(0, count, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        images[chunk] = _draw(labels[chunk], random)
    return images, labels


def _draw(labels: npt.NDArray[np.int64], random: np.random.Generator) -> Floats:
    def each(low: float, high: float) -> Floats:
        return random.uniform(low, high, (len(labels), 1)).astype(np.float32)

    # 1. Find the place of each pixel in the glyph's unit square, by the inverse of the glyph's distortion.
    across, down = (axis.ravel() for axis in np.meshgrid(_PIXELS, _PIXELS))
    x, y = across - each(-0.12, 0.12), down - each(-0.12, 0.12)
    angle = each(-0.35, 0.35)
    x, y = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    x = (x + y * each(-0.3, 0.3)) / each(0.7, 1.1)
    y = y / each(0.7, 1.05)
    x, y = x + 0.04 * np.sin(y * 7 + each(0, 6.3)), y + 0.04 * np.sin(x * 7 + each(0, 6.3))
    # 2. Compute the ink of each pixel from its distance to the nearest stroke.
    row, column = (np.rint((axis + 0.5 + _MARGIN) * _SCALE).clip(0, _FIELD - 1).astype(np.intp) for axis in (y, x))
    distance = _FIELDS[labels[:, None], row, column]
    ink = ((each(0.02, 0.06) - distance) * SIDE + 0.5).clip(0, 1) * each(0.6, 1.0)
    noisy: Floats = ink + random.standard_normal(ink.shape, np.float32) * np.float32(_NOISE)
    return noisy.clip(0, 1).astype(np.float32)


def _arc(x: float, y: float, rx: float, ry: float, start: float, end: float) -> _Stroke:
    """Return part of an ellipse around (x, y). Angles are in degrees, clockwise from the right."""
    angles = np.radians(np.linspace(start, end, 13))
    return [(x + rx * float(np.cos(angle)), y + ry * float(np.sin(angle))) for angle in angles]


_STROKES: list[list[_Stroke]] = [  # the strokes of each digit, in the unit square; x to the right, y down
    [_arc(0.5, 0.5, 0.23, 0.36, 0, 360)],
    [[(0.36, 0.3), (0.53, 0.14), (0.53, 0.86)]],
    [[*_arc(0.5, 0.35, 0.21, 0.21, -170, 40), (0.29, 0.86), (0.73, 0.86)]],
    [_arc(0.47, 0.32, 0.2, 0.18, -150, 90), _arc(0.47, 0.68, 0.24, 0.18, -90, 150)],
    [[(0.62, 0.86), (0.62, 0.14), (0.26, 0.62), (0.76, 0.62)]],
    [[(0.7, 0.14), (0.36, 0.14), (0.33, 0.47), *_arc(0.47, 0.64, 0.24, 0.22, -120, 150)]],
    [[(0.63, 0.14), *_arc(0.5, 0.66, 0.23, 0.2, -170, 190)]],
    [[(0.27, 0.14), (0.73, 0.14), (0.42, 0.86)]],
    [_arc(0.5, 0.32, 0.18, 0.18, 0, 360), _arc(0.5, 0.68, 0.22, 0.18, 0, 360)],
    [[*_arc(0.5, 0.34, 0.23, 0.2, 0, 360), (0.73, 0.34), (0.6, 0.86)]],
]


def _segments(strokes: list[_Stroke]) -> Iterator[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    for stroke in strokes:
        for start, end in pairwise(stroke):
            yield np.array(start), np.array(end)


def _distance_field(strokes: list[_Stroke]) -> Floats:
    """Return the distance of each point of a fine grid from the nearest stroke."""
    axis = np.arange(_FIELD) / _SCALE - _MARGIN
    points = np.stack(np.meshgrid(axis, axis), axis=-1)
    nearest = np.full((_FIELD, _FIELD), np.inf)
    for start, end in _segments(strokes):
        along = end - start
        share = ((points - start) @ along / (along @ along)).clip(0, 1)
        foot = start + share[..., None] * along
        nearest = np.minimum(nearest, np.linalg.norm(points - foot, axis=-1))
    return nearest.astype(np.float32)


_SCALE = (_FIELD - 1) / (1 + 2 * _MARGIN)
_FIELDS = np.stack([_distance_field(strokes) for strokes in _STROKES])
