"""paramsync.v1.Sync: what the operator sees and asks for, translated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from inferencer.events import EventKind
from inferencer.follower import Follower
from inferencer.services.feed import Feed
from inferencer.services.messages import of_event, of_status
from inferencer.services.models import Models
from inferencer.status import Status
from inferencer.wishes import Action
from paramsync.errors import InputError
from paramsync.v1 import sync_pb2 as pb

_MARGIN = 0.1  # seconds before the caller's deadline in which to say why it will not be met


class SyncService:
    """Lives on one event loop, and never blocks it: followers answer through futures."""

    def __init__(self, models: Models, draining: asyncio.Event) -> None:
        self._models = models
        self._draining = draining

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(models=[of_status(one.status()) for one in self._models.some(request.model)])

    async def Sync(self, request: pb.SyncRequest, context: Any) -> AsyncIterator[pb.SyncProgress]:
        follower = self._models.only(request.model)
        number = request.version if request.HasField("version") else None
        yield pb.SyncProgress(phase=pb.SyncProgress.LOOKING, version=number or 0)
        with Feed([follower]) as feed:
            done = asyncio.ensure_future(_wait(follower, Action.SYNC, number, context))
            news = asyncio.ensure_future(feed.next())
            try:
                while not done.done():
                    await asyncio.wait({done, news}, return_when=asyncio.FIRST_COMPLETED)
                    if news.done():
                        for event in news.result():
                            if event.kind is EventKind.RESTORING:
                                yield pb.SyncProgress(phase=pb.SyncProgress.RESTORING, version=event.version.number)
                        news = asyncio.ensure_future(feed.next())
            finally:
                done.cancel()
                news.cancel()
            status = await done
        serving = status.serving.number if status.serving else 0
        yield pb.SyncProgress(phase=pb.SyncProgress.DONE, version=serving, status=of_status(status))

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.Event]:
        with Feed(self._models.some(request.model)) as feed:
            await context.send_initial_metadata(())  # from here on the caller is told everything
            ended = asyncio.ensure_future(self._draining.wait())
            try:
                while not ended.done():
                    news = asyncio.ensure_future(feed.next())
                    await asyncio.wait({ended, news}, return_when=asyncio.FIRST_COMPLETED)
                    for event in news.result() if news.done() else ():
                        message = of_event(event)
                        if message is not None:
                            yield message
                    news.cancel()
            finally:
                ended.cancel()

    async def Pin(self, request: pb.PinRequest, context: Any) -> pb.ModelStatus:
        if not request.HasField("version"):
            raise InputError("version", expected="the number of a version", found="none")
        follower = self._models.only(request.model)
        return of_status(await _wait(follower, Action.PIN, request.version, context))

    async def Unpin(self, request: pb.UnpinRequest, context: Any) -> pb.ModelStatus:
        return of_status(await _wait(self._models.only(request.model), Action.UNPIN, None, context))


async def _wait(follower: Follower, action: Action, number: int | None, context: Any) -> Status:
    """What the follower answers, or just before the caller's deadline why it has not. Raises as Follower.sync does."""
    left: float | None = context.time_remaining()
    answer = asyncio.wrap_future(follower.ask(action, number))
    try:
        return await asyncio.wait_for(answer, None if left is None else max(0.0, left - min(_MARGIN, left / 5)))
    except asyncio.TimeoutError:
        raise TimeoutError(follower.late(number, left)) from None
