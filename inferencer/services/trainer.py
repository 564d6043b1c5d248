"""The trainer as a server sees it: somebody who can be asked to publish now."""

from __future__ import annotations

import grpc

from paramsync.errors import SyncError
from paramsync.v1 import sync_pb2 as pb

_PUBLISH = "/paramsync.v1.Publisher/Publish"
_SECONDS = 30.0  # for a caller who has no deadline
_OPTIONS = (("grpc.enable_http_proxy", 0),)


async def publish(address: str, *, seconds: float | None) -> int:
    """The number of the version that the trainer at this address publishes now. Raises SyncError, TimeoutError."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        call = channel.unary_unary(_PUBLISH, pb.PublishRequest.SerializeToString, pb.Version.FromString)
        try:
            version: pb.Version = await call(pb.PublishRequest(), timeout=_SECONDS if seconds is None else seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError(f"the trainer at {address} did not publish in time") from None
            said = " ".join((error.details() or error.code().name).split())
            raise SyncError(f"the trainer at {address} did not publish: {said}") from None
    return version.number
