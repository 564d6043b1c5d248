"""What others wrote, where people read it: one line, and nothing that a terminal would take for a command."""

from __future__ import annotations


def line(text: str) -> str:
    """The text on one line."""
    return harmless(" ".join(text.split()))


def harmless(text: str) -> str:
    """The text with what cannot be printed written out, as \\x1b."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
