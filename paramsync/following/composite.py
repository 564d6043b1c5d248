"""Connection: joins two served models into one; outputs of the first become inputs of the second."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping

from paramsync.errors import NotServingError, ParamsyncError
from paramsync.following.faults import describe
from paramsync.following.replica import Replica
from paramsync.inference.joined import Joined, Joiner, Pair
from paramsync.inference.resident import Resident
from paramsync.status import State, Status

_log = logging.getLogger("paramsync.connection")


class Connection:
    """Feeds the outputs of `first` into `second`; each answer comes from exactly one version of each.

    The joined graph of two versions is built on the thread of the follower whose part is about to swap. It is built
    before the swap, so that the new pair serves as soon as the part's new version does. If two versions do not fit
    together, each part still swaps, and the connection goes on serving the last pair that fitted.

    `take`, `status` and the properties may be used from any number of threads at once and take no lock. A joined
    version has the number of the second part's version.
    """

    def __init__(
        self, model: str, first: Replica, second: Replica, inputs: Mapping[str, str], outputs: Collection[str] = ()
    ) -> None:
        """`inputs` maps inputs of `second` to outputs of `first`. The pair also returns these `outputs` of `first`.

        The followers of both parts may already run.
        """
        self.model = model
        self.parts = (first, second)
        self._names = (first.model, second.model)
        self._joiner = Joiner(self._names, inputs, outputs)
        self._lock = threading.Lock()  # guards the next three fields; no thread holds the lock while it builds a graph
        self._serving: Joined | None = None  # the pair from which requests are answered
        self._reason = ""
        self._swaps = 0
        self._leaves: tuple[Callable[[], None], ...] = (
            first.on_swap(lambda resident: self._prepare(0, resident)),
            second.on_swap(lambda resident: self._prepare(1, resident)),
        )
        self._follow()

    def close(self) -> None:
        """Stop joining versions. Requests may go on using a joined version that they have taken."""
        leaves, self._leaves = self._leaves, ()  # the functions refer to this object and would delay its freeing
        for leave in leaves:
            leave()

    # For everybody ----------------------------------------------------------------------------------------------------

    @property
    def residents(self) -> tuple[Resident, ...]:
        """The joined versions, the serving pair first."""
        serving = self._serving
        if serving is None:
            return ()
        first, last = serving.pair
        others = [
            self._joiner.joined((first, resident)) for resident in self.parts[1].residents if resident is not last
        ]
        return (serving, *(joined for joined in others if joined is not None))

    @property
    def reason(self) -> str:
        """Why the versions that the parts serve are not joined; empty if they are joined."""
        return self._reason

    def take(self, version: int | None = None, label: str = "") -> Resident:
        """Return the serving pair.

        `version` or `label` names a version of the second part. If given, return this version joined with the
        pair's version of the first part.

        Raises NotServingError, which names the part that has no version yet, UnknownVersionError, UnknownLabelError.
        """
        serving = self._serving
        if serving is None:
            waiting = [part for part in self.parts if not part.residents]
            missing = self._reason or ", ".join(map(_absent, waiting)) or "its parts are being joined"
            raise NotServingError(self.model, missing)
        if version is None and not label:
            return serving
        first, second = serving.pair
        last = self.parts[1].take(version, label)
        joined = serving if last is second else self._joiner.joined((first, last))
        if joined is None:
            raise NotServingError(self.model, f"version {last.version.number} of {self._names[1]!r} is not joined here")
        return joined

    def status(self) -> Status:
        """Return the status of the joined model. Each part has a status of its own."""
        serving = self._serving
        return Status(
            model=self.model,
            store=self.parts[1].source.path,
            state=State.WAITING if serving is None else State.SERVING,
            serving=None if serving is None else serving.version,
            parts=() if serving is None else serving.parts,
            labels={} if serving is None else self.parts[1].labels,
            resident=tuple(resident.version.number for resident in self.residents),
            reason=self._reason,
            swaps=self._swaps,
        )

    # For the followers of the parts -----------------------------------------------------------------------------------

    def _prepare(self, part: int, resident: Resident) -> Callable[[], None]:
        """Build the joined graph for a part's next serving version. Returns a function to call after the swap."""
        other = self.parts[1 - part].residents[:1]
        if other:
            pair = (resident, other[0]) if part == 0 else (other[0], resident)
            with contextlib.suppress(ParamsyncError):  # `_follow` reports the error after the swap
                self._joiner.build(pair)
        return self._follow

    def _follow(self) -> None:
        """Join the serving versions. Each follower calls this after its swap, so the last call sees both swaps."""
        while (pair := self._serving_pair()) is not None:
            joined, reason = None, ""
            try:
                joined = self._joiner.build(pair)  # without the lock: building takes long, and the other part may swap
            except ParamsyncError as error:
                reason = describe(error)
            with self._lock:
                if pair == self._serving_pair():
                    self._take_over(joined, reason)
                    return

    def _take_over(self, joined: Joined | None, reason: str) -> None:
        """Serve this pair, or go on serving the previous pair and say why."""
        if reason and reason != self._reason:
            _log.warning("%s: %s", self.model, reason)
        self._reason = reason
        if joined is not None and (self._serving is None or self._serving.pair != joined.pair):
            self._serving = joined
            self._swaps += 1

    def _serving_pair(self) -> Pair | None:
        first, second = (part.residents[:1] for part in self.parts)
        return (first[0], second[0]) if first and second else None


def _absent(part: Replica) -> str:
    reason = f", {part.reason}" if part.reason else ""
    return f"part {part.model!r} has no version yet (store {part.source.path}{reason})"
