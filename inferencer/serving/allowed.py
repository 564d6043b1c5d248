"""What callers of the port for predictions may change, where nobody shows who he is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paramsync.errors import NotAllowedError
from paramsync.rpc.addresses import is_loopback

_OPTION = "--reload-root"


class Allowed:
    """On loopback everything, elsewhere nothing; with `roots`, wherever it listens, models whose stores are below."""

    def __init__(self, roots: Sequence[Path], *, host: str) -> None:
        self._roots = tuple(roots)
        self._any = bool(roots) or is_loopback(host)

    def check(self, what: str) -> None:
        """Raise NotAllowedError where callers change nothing."""
        if not self._any:
            raise NotAllowedError(
                f"{what} is not allowed where others than this machine reach this port, which knows nobody: start the"
                f" inferencer with {_OPTION} DIR, the folder below which stores may be, or on a loopback address"
            )

    def check_store(self, where: str, path: Path) -> None:
        """Raise NotAllowedError for a store that is not below a root, wherever links in it lead. Looks at files."""
        if self._roots and not any(_is_below(path, root) for root in self._roots):
            roots = " or ".join(map(str, self._roots))
            raise NotAllowedError(f"{where}: expected one below {roots} ({_OPTION}), found {str(path)[:200]!r}")


def _is_below(path: Path, root: Path) -> bool:
    try:
        return path.resolve(strict=True).is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # nothing there, links in a circle, a name too long
        return False
