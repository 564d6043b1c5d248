"""Peers: the statuses of other servers, for the page."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paramsync.errors import ParamsyncError
from paramsync.rpc.addresses import resolve
from paramsync.rpc.client import Credentials, Inferencer, short
from paramsync.v1 import sync_pb2 as pb

from ..protocols.page import messages

_log = logging.getLogger("paramsync.supervisor")


class Peers:
    """Asks the control ports that `targets` stand for. `run` has its own thread; any thread may read `rows`."""

    def __init__(self, targets: Sequence[str], credentials: Callable[[], Credentials]) -> None:
        """`credentials` is called each time that calls to a server begin, because tokens change."""
        self._targets = targets
        self._credentials = credentials
        self._peers: Mapping[str, _Peer] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Return the last answer of each server that was asked, or why it does not answer."""
        return [peer.row for peer in self._peers.values() if peer.row is not None]

    def run(self, ended: threading.Event, wanted: Callable[[], bool], seconds: float) -> None:
        """Ask every `seconds` while `wanted()` is true."""
        while self._targets and not ended.wait(seconds):
            try:
                self.run_once(wanted=wanted())
            except Exception:  # noqa: BLE001, the next look is tried
                _log.exception("a look at the peers failed; the next one follows")
        self.run_once(wanted=False)

    def run_once(self, *, wanted: bool) -> None:
        """Begin to ask every server whose last call is over. If not `wanted`, forget all servers."""
        before = self._peers
        addresses = {at: name for target in self._targets for at, name in resolve(target).items()} if wanted else {}
        self._peers = {
            at: before.get(at) or _Peer(Inferencer(at, self._credentials(), name=name))
            for at, name in addresses.items()
        }
        for gone in before.keys() - self._peers.keys():
            before[gone].close()
        for peer in self._peers.values():
            peer.ask()


class _Peer:
    """One server. Each call has its own thread, so that a server that does not answer delays no other call."""

    def __init__(self, server: Inferencer) -> None:
        self.row: dict[str, Any] | None = None
        self._server = server
        self._call: threading.Thread | None = None

    def ask(self) -> None:
        if self._call is None or not self._call.is_alive():
            self._call = threading.Thread(target=self._ask, name="peer", daemon=True)
            self._call.start()

    def close(self) -> None:
        """End a call under way."""
        self._server.close()

    def _ask(self) -> None:
        facts = {"address": self._server.address, "at": time.time(), "error": None}
        try:
            models = self._server.status()
        except ParamsyncError as error:
            self.row = {**facts, "error": messages.short(short(error, self._server.address)), "models": {}}
        except ValueError:  # gRPC's error for a call on a client that was closed meanwhile
            return
        else:
            self.row = {**facts, "models": {model.model: _of_model(model) for model in models}}


def _of_model(model: pb.ModelStatus) -> dict[str, Any]:
    def maybe(name: str) -> Any:
        return getattr(model, name) if model.HasField(name) else None

    serving = maybe("serving")
    return {
        "state": pb.ModelStatus.State.Name(model.state).lower(),
        "serving": None if serving is None else messages.number(serving.number),
        "pinned": messages.maybe_number(maybe("pinned")),
        "lag_seconds": maybe("lag_seconds"),
        "lag_versions": maybe("lag_versions"),
        "swap_skew_seconds": maybe("swap_skew_seconds"),
        "reason": messages.short(model.reason),
    }
