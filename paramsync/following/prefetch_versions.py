"""PrefetchedVersions: in memory beside the one that serves, for a change or as the newest of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paramsync.following.operator_requests import OperatorRequests
from paramsync.following.policy import newest
from paramsync.following.quarantine import Quarantine
from paramsync.following.residents import Residents
from paramsync.inference.view import InMemory
from paramsync.version import Candidate, Version

Published = Candidate[Version]


class PrefetchedVersions:
    """One thread owns it, the follower's.

    `in_memory` returns a published version that is resident, `restored` restores one. Both return None where there is
    none, and may raise what ends a round.
    """

    def __init__(
        self,
        replica: Residents[Any],
        requests: OperatorRequests,
        quarantine: Quarantine,
        *,
        in_memory: Callable[[Published], InMemory | None],
        restored: Callable[[Published], InMemory | None],
    ) -> None:
        self._replica = replica
        self._requests = requests
        self._quarantine = quarantine
        self._in_memory = in_memory
        self._restored = restored
        self._newest: list[InMemory] = []

    def bring(self, held: Sequence[InMemory], published: Sequence[Published] | None) -> None:
        """Hold these, and the newest published versions, which are restored one by one, the newest first.

        Versions that nobody wants any more leave before the first restore, but for as many as shall stay. Where nobody
        knows what is published, or a version is pinned, the newest stay what they are.
        """
        count = self._requests.latest
        if count is None:
            self._newest = []
        self._hold(held)
        while count is not None and published is not None and self._requests.pinned is None:
            wanted = newest(published, quarantined=self._quarantine.files(), count=count)
            there = [(one, self._in_memory(one)) for one in wanted]
            self._newest = [resident for _, resident in there if resident is not None]
            self._hold(held)
            missing = next((one for one, resident in there if resident is None), None)
            if missing is None:
                return
            if (resident := self._restored(missing)) is not None:
                self._newest.append(resident)
                self._hold(held)
            elif missing.number not in self._quarantine.files():
                return  # it is tried at the next look

    def _hold(self, held: Sequence[InMemory]) -> None:
        count, newest_ones = self._requests.latest, self._newest
        most = self._replica.resident if count is None else count
        serving = self._replica.residents[:1]
        others = sum(one not in serving for one in newest_ones)
        recent = most if count is None else max(1, count - others)
        self._replica.hold([*dict.fromkeys((*held, *newest_ones))], recent=recent, most=most)
