"""What the arguments of every program have in common."""

from __future__ import annotations

from collections.abc import Iterable

from paramsync.errors import SettingsError


def check_text(arguments: Iterable[str]) -> None:
    """Raises SettingsError for one that is not text: it could be in no message, status or call."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise SettingsError(f"expected arguments in UTF-8, found {argument!r}") from error
