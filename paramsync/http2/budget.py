"""A budget for frames that carry nothing, such as pings."""

from __future__ import annotations

from paramsync.http2.errors import ErrorCode, Http2Error


class Budget:
    """Refilled by time and by answers, up to a maximum. Callers tell the time."""

    def __init__(self, most: int, per_second: int) -> None:
        self._most = most
        self._per_second = per_second
        self._left = float(most)
        self._counted = 0.0  # time up to which the budget was refilled

    def earn(self, gain: int) -> None:
        self._left = min(self._left + gain, self._most)

    def spend(self, cost: int, now: float, *, grows: bool) -> None:
        """Raises Http2Error if too little is left. Without `grows`, the time since the last call refills nothing."""
        if grows:
            self._left = min(self._left + (now - self._counted) * self._per_second, self._most)
        self._counted = now
        self._left -= cost
        if self._left < 0:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry nothing, or requests taken back")
