"""How many bytes of large messages there may be at once: requests that are not answered, answers that are not read."""

from __future__ import annotations

from typing import Any

from paramsync.errors import BusyError


class Room:
    """Lives on one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0

    def hold(self, size: int, context: Any) -> None:
        """Keep room for so many bytes until the call is over. Raises BusyError where there is none."""
        if self.taken and self.taken + size > self._most:
            raise BusyError(
                f"{self.taken} bytes of large requests and of answers that were not read are here already: expected"
                f" {self._most} with this one at most; try again in a moment"
            )
        self.taken += size
        context.add_done_callback(lambda _: self._leave(size))

    def _leave(self, size: int) -> None:
        self.taken -= size
