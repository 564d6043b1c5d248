"""Records what a command shows in a terminal of 80 columns, as an animated SVG.

python docs/pictures/recording.py docs/pictures/up.svg .venv/bin/paramsync up --seconds 20
"""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import re
import struct
import sys
import termios
import time
from collections import defaultdict
from collections.abc import Iterator
from html import escape
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.segment import Segment
from rich.terminal_theme import MONOKAI as THEME
from rich.text import Text

COLUMNS, ROWS = 80, 40
WIDTH, HEIGHT, MARGIN = 8.4, 18.0, 16.0  # of a character, of a row, around all
FRAMES, SECONDS, LAST_SECONDS = 10, 1.2, 4.0
INK, PAPER, BLACK = "#d9d9d9", "#14161a", "#000000"
ACROSS, DOWN = 0.06, 0.13  # of a row and of a column: lines of boxes
LINES = {"─": "lr", "│": "ud", "╭": "rd", "╮": "ld", "╰": "ru", "╯": "lu"}  # left, right, up, down from the middle
EIGHTHS = " ▁▂▃▄▅▆▇█"
PIECES = r"(?P<half>▀+)|(?P<bar>[▁-█])|(?P<box>[─│╭╮╰╯])|[^\s▀-█─│╭╮╰╯]+(?: [^\s▀-█─│╭╮╰╯]+)*"
REDRAWN = "\r\x1b[2K"  # begins whatever rich draws over what is there


def record(command: list[str]) -> str:
    """What the command writes to a terminal, each redraw behind a mark of its time."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp("env", ["env", "-u", "NO_COLOR", "TERM=xterm-256color", *command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    written, began = bytearray(), time.monotonic()
    while True:
        try:
            portion = os.read(terminal, 1 << 16)
        except OSError:  # Linux: the other side is closed
            break
        written += f"\0{time.monotonic() - began:.2f}\0".encode() * portion.startswith(REDRAWN.encode()) + portion
    os.waitpid(child, 0)
    return written.decode()


def screens(written: str) -> list[tuple[float, list[str]]]:
    """The lines on the terminal after each redraw, and when that was."""
    lines, row, shown = [""], 0, []
    for at, drawn in re.findall(r"\0([\d.]+)\0([^\0]*)", "\0" + "0.00\0" + written):
        for piece in re.findall(r"\x1b\[\d*A|\x1b\[2K|\x1b\[\?25.|\r?\n|\r|[^\x1b\r\n]+|\x1b\[[\d;]*m", drawn):
            if piece.endswith("A"):
                row = max(0, row - int(piece[2:-1] or 1))
            elif piece == "\x1b[2K":
                lines[row] = ""
            elif piece.endswith("\n"):
                row += 1
                lines += [""] * (row == len(lines))
            elif piece != "\r" and not piece.startswith("\x1b[?"):
                lines[row] += piece
        shown.append((float(at), [line for line in lines if line]))
    return shown


def chosen(shown: list[tuple[float, list[str]]]) -> list[list[str]]:
    """The screen before anything is served, so many spread over what follows, and the last one."""
    live = [number for number, (_, lines) in enumerate(shown) if len(lines) > 2]
    first, last = shown[live[0]][0], shown[live[-1]][0]
    times = [first + (last - first) * part / (FRAMES - 1) for part in range(FRAMES)]
    picked = [min(live, key=lambda number: abs(shown[number][0] - at)) for at in times]
    return [shown[max(0, live[0] - 1)][1], *(shown[number][1] for number in picked), shown[-1][1]]


def colour(found: ColorTriplet) -> str:
    """As hexadecimal; greys in steps, so that neighbours are drawn together."""
    if max(found) - min(found) < 3:
        found = ColorTriplet(*[round(found[0] / 24) * 24 if found[0] < 240 else 240] * 3)
    return found.hex


def cells(lines: list[str]) -> Iterator[tuple[int, int, str, str, str, bool]]:
    """Row, column, text, its colour, that behind it, and whether it is bold."""
    console = Console(width=COLUMNS, color_system="256")
    for row, line in enumerate(AnsiDecoder().decode("\n".join(lines))):
        column = 0
        for segment in Segment.simplify(console.render(line if line else Text(" "), console.options)):
            style = segment.style
            text = segment.text.rstrip("\n")
            ink = style.color.get_truecolor(THEME) if style and style.color else None
            paper = style.bgcolor.get_truecolor(THEME) if style and style.bgcolor else None
            yield (
                row,
                column,
                text,
                colour(ink) if ink else INK,
                colour(paper) if paper else "",
                bool(style and style.bold),
            )
            column += len(text)


def drawn(lines: list[str]) -> str:
    """One screen as elements of SVG: blocks and boxes as paths of one colour each, all other text as text."""
    filled: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)  # top, left, right, height
    texts = []
    for row, column, text, ink, paper, bold in cells(lines):
        for match in re.finditer(PIECES, text):
            left, right = column + match.start(), column + match.end()
            if match["half"]:
                filled[ink].append((row, left, right, 0.5))
                filled[paper].append((row + 0.5, left, right, 0.5))
            elif match["bar"]:
                high = EIGHTHS.index(match[0]) / 8
                filled[ink].append((row + 1 - high, left, right, high))
            elif match["box"]:
                ways = LINES[match[0]]
                begin, end = left + 0.5 * ("l" not in ways), left + 1 - 0.5 * ("r" not in ways)
                top, bottom = row + 0.5 * ("u" not in ways), row + 1 - 0.5 * ("d" not in ways)
                if end > begin + 0.1 and ways != "ud":
                    filled[ink].append((row + 0.5, begin, end, ACROSS))
                if ways != "lr":
                    filled[ink].append((top, left + 0.5, left + 0.5 + DOWN, bottom - top))
            else:
                weight = ' font-weight="bold"' if bold else ""
                place = f'x="{left * WIDTH:.1f}" y="{row * HEIGHT + 13:g}" textLength="{len(match[0]) * WIDTH:.1f}"'
                texts.append(f'<text {place} fill="{ink}"{weight}>{escape(match[0])}</text>')
    filled.pop(BLACK, None)  # on dark paper
    paths = [f'<path fill="{ink}" d="{joined(bars)}"/>' for ink, bars in filled.items() if ink]
    return f'<g transform="scale({WIDTH:g},{HEIGHT:g})">{"".join(paths)}</g>{"".join(texts)}'


def joined(bars: list[tuple[float, float, float, float]]) -> str:
    """A path over all bars; neighbours of one height are one."""
    path, start, begin, long, end = "", 0, 0.0, 0.0, (0.0, 0.0, 0.0)
    ordered = sorted(bars, key=lambda bar: (bar[0], bar[3], bar[1]))
    for top, left, right, high in ordered:
        if path and (top, high, left) == end:
            long += right - left
            path = path[:start]
        else:
            long, begin, start = right - left, left, len(path)
        path += f"M{begin:g},{top:g}h{long:g}v{high:g}h-{long:g}z"
        end = (top, high, right)
    return path


def picture(frames: list[list[str]], title: str) -> str:
    """One SVG that shows the frames one after the other; where nothing moves, the last one."""
    long = SECONDS * (len(frames) - 1) + LAST_SECONDS
    wide = COLUMNS * WIDTH + 2 * MARGIN
    high = max(map(len, frames)) * HEIGHT + 2 * MARGIN
    groups = []
    for number, lines in enumerate(frames):
        last = number == len(frames) - 1
        kind = "last" if last else "frame"
        groups.append(f'<g class="{kind}" style="animation-delay:{number * SECONDS - long:g}s">{drawn(lines)}</g>')
    shares = {"frame": 100 * SECONDS / long, "last": 100 * LAST_SECONDS / long}
    rules = "".join(
        f".{kind}{{animation:{kind} {long:g}s step-end infinite}}"
        f"@keyframes {kind}{{0%{{visibility:visible}}{share:.3f}%,100%{{visibility:hidden}}}}"
        for kind, share in shares.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" height="{high:g}"'
        ' font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="13.5">'
        f"<title>{escape(title)}</title><style>.frame{{visibility:hidden}}"
        f"@media (prefers-reduced-motion:no-preference){{{rules}}}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>'
        f'<g transform="translate({MARGIN:g},{MARGIN:g})">{"".join(groups)}</g></svg>\n'
    )


def main(target: str, *command: str) -> None:
    frames = chosen(screens(record(list(command))))
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), command))
    Path(target).write_text(picture(frames, f"What {' '.join([Path(words[0]).name, *words[1:]])} shows"))


if __name__ == "__main__":
    main(*sys.argv[1:])
