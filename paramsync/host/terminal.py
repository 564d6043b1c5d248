"""Makes text of strangers fit for a terminal: one line, without anything that the terminal would execute."""

from __future__ import annotations


def line(text: str) -> str:
    """The text on one line."""
    return harmless(" ".join(text.split()))


def harmless(text: str) -> str:
    """The text with characters that cannot be printed escaped, as \\x1b."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
