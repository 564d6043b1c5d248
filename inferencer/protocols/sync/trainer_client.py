"""Asks the trainer of a model to publish now."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from paramsync.errors import CorruptCheckpointError, StoreError, SyncError
from paramsync.rpc.server import of_value
from paramsync.rpc.tls import ClientTls
from paramsync.rpc.tokens import Tokens
from paramsync.store.store import Store, is_name, lock_owner, read_record
from paramsync.v1 import sync_pb2 as pb

from ...serving.call_with_timeout import aside

_PUBLISHER = "/paramsync.v1.Publisher/"
_SECONDS = 30.0  # limit for a caller without a deadline
_OPTIONS = (("grpc.enable_http_proxy", 0),)


class TrainerCalls:
    """Calls trainers, with a token and TLS if configured. Lives on one event loop."""

    def __init__(self, tokens: Tokens | None, tls: ClientTls | None) -> None:
        self._tokens = tokens
        self._tls = tls

    async def publish(self, address: str, *, model: str, store: Path, seconds: float | None) -> int:
        """Have the trainer at this address publish now, and return the version's number.

        Raises SyncError, also if the trainer publishes into another store, and TimeoutError.
        """
        deadline = time.monotonic() + (_SECONDS if seconds is None else seconds)
        shown = () if self._tokens is None else (("authorization", f"Bearer {self._tokens.first()}"),)
        if self._tls is None:
            channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            channel = grpc.aio.secure_channel(address, self._tls.credentials, options=_OPTIONS)

        async def ask(method: str, request: Any, answer: Callable[[bytes], Any]) -> Any:
            call = channel.unary_unary(f"{_PUBLISHER}{method}", type(request).SerializeToString, answer)
            try:
                return await call(request, timeout=max(0.0, deadline - time.monotonic()), metadata=shown)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise TimeoutError(f"the trainer at {address} did not publish in time") from None
                why = " ".join((error.details() or error.code().name).split())
                raise SyncError(f"the trainer at {address} did not publish: {why}") from None

        async with channel:
            status = await ask("GetStatus", pb.GetPublisherStatusRequest(), pb.PublisherStatus.FromString)
            if not await aside(partial(follows, store, status), f"the store of model {model!r}"):
                raise SyncError(
                    f"the trainer at {address} publishes to {status.store}, and model {model!r} is followed in {store},"
                    f" which is another store: name the trainer of this one, with --trainer {model}=HOST:PORT"
                )
            version: pb.Version = await ask("Publish", pb.PublishRequest(), pb.Version.FromString)
        return version.number


def follows(store: Path, trainer: pb.PublisherStatus) -> bool:
    """Whether the store is the trainer's store, perhaps under another path, or a copy of that store.

    Returns True if one of these statements is true:

    - The trainer names no publisher, because its release is older.
    - The trainer's publisher is the last owner of the store's lock.
    - The store has the trainer's newest version.
    - The store's lock names no owner, and the newest versions of the store and of the trainer have the same graph.
    """
    if not trainer.publisher or lock_owner(store) == trainer.publisher:  # earlier releases do not name the publisher
        return True
    newest = trainer.published
    try:
        record = read_record(store, newest.prefix) if is_name(newest.prefix) else None
        if record is not None and of_value(pb.Version, record) == newest:
            return True
        latest = None if lock_owner(store) else Store(store).latest()
    except (CorruptCheckpointError, StoreError):
        return False
    return latest is not None and bool(latest.graph) and latest.graph == newest.graph
