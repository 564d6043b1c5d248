"""The gRPC service paramsync.v1.Sync, for operators."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from paramsync.errors import InputError, SyncError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.pins_file import check_label
from paramsync.moments import LATEST_MOMENT
from paramsync.status import Event, EventKind, Status
from paramsync.v1 import sync_pb2 as pb

from ...serving.feed import Feed
from ...serving.metrics import Load
from ...serving.served import Models, follower_of
from ...serving.worker_status import Replaced, WorkerStatus
from .messages import of_event, of_load, of_progress, of_replaced, of_status, of_worker
from .trainer_client import TrainerCalls

_MARGIN = 0.1  # seconds before its deadline at which a late call is answered with the reason for the delay


class SyncService:
    """The methods of the service. They run on one event loop and never block it: followers answer through futures."""

    def __init__(
        self,
        models: Models,
        draining: asyncio.Event,
        told: Callable[[], Awaitable[None]],
        workers: Callable[[], Sequence[WorkerStatus]],
        load: Callable[[], tuple[Mapping[str, Load], int]],
        replace: Callable[[int], Replaced],
        trainers: TrainerCalls,
    ) -> None:
        """`told` returns once all workers know the followers' statuses, or after a second.

        Sync and the calls that change pins or labels are answered only after that.

        `replace` replaces the process of a worker, and blocks meanwhile. `trainers` calls trainers.
        """
        self._models = models
        self._draining = draining
        self._told = told
        self._workers = workers
        self._load = load
        self._replace = replace
        self._replacing = False
        self._trainers = trainers

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        models = [of_status(model.status()) for model in self._models.some(request.model)]
        workers = await asyncio.to_thread(lambda: [of_worker(worker) for worker in self._workers()])
        answer = pb.GetStatusResponse(models=models, workers=workers)
        if request.load:
            loads, answer.waiting = await asyncio.to_thread(self._load)
            answer.loads.extend(of_load(status.model, loads.get(status.model, Load())) for status in models)
        return answer

    async def Sync(self, request: pb.SyncRequest, context: Any) -> AsyncIterator[pb.SyncProgress]:
        follower = follower_of(self._models, request.model)
        number = request.version if request.HasField("version") else None
        if request.fresh:
            if number is not None:
                raise InputError("version", expected="none where a fresh one is asked for", found=number)
            yield pb.SyncProgress(phase=pb.SyncProgress.PUBLISHING)
            store = follower.replica.source.path
            number = await self._trainers.publish(
                self._trainer(follower.model),
                model=follower.model,
                store=store,
                seconds=seconds_to_wait(context.time_remaining()),
            )
        yield pb.SyncProgress(phase=pb.SyncProgress.LOOKING, version=number or 0)
        with Feed([follower]) as feed:
            done = asyncio.ensure_future(wait(follower, Action.SYNC, context, number, serve_at=_moment(request)))
            news = asyncio.ensure_future(feed.next())
            try:
                while not done.done():
                    await asyncio.wait({done, news}, return_when=asyncio.FIRST_COMPLETED)
                    if news.done():
                        for message in _restoring(news.result()):
                            yield message
                        news = asyncio.ensure_future(feed.next())
            finally:
                done.cancel()
                news.cancel()
                await self._told()
            status = await done
        serving = status.serving.number if status.serving else 0
        yield pb.SyncProgress(phase=pb.SyncProgress.DONE, version=serving, status=of_status(status))

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.Event]:
        others = self._models.changed
        with Feed(self._models.followers(request.model)) as feed:
            await context.send_initial_metadata(())  # from here on the caller misses no event
            ended = asyncio.ensure_future(self._draining.wait())
            changed = asyncio.ensure_future(others.wait())
            news = asyncio.ensure_future(feed.next())
            try:
                while not ended.done():
                    await asyncio.wait({ended, changed, news}, return_when=asyncio.FIRST_COMPLETED)
                    if news.done():
                        for event in news.result():
                            message = of_event(event)
                            if message is not None:
                                yield message
                        news = asyncio.ensure_future(feed.next())
                    if changed.done():
                        changed = asyncio.ensure_future(self._models.changed.wait())
                        feed.follow(self._models.followers(request.model))
            finally:
                for waiting in (ended, changed, news):
                    waiting.cancel()

    async def Pin(self, request: pb.PinRequest, context: Any) -> pb.ModelStatus:
        return await self._change(request, Action.PIN, context, _number(request), serve_at=_moment(request))

    async def Unpin(self, request: pb.UnpinRequest, context: Any) -> pb.ModelStatus:
        return await self._change(request, Action.UNPIN, context, serve_at=_moment(request))

    async def Rollback(self, request: pb.RollbackRequest, context: Any) -> pb.ModelStatus:
        number = request.version if request.HasField("version") else None
        return await self._change(request, Action.ROLLBACK, context, number, serve_at=_moment(request))

    async def Label(self, request: pb.LabelRequest, context: Any) -> pb.ModelStatus:
        return await self._change(request, Action.LABEL, context, _number(request), _label(request))

    async def Unlabel(self, request: pb.UnlabelRequest, context: Any) -> pb.ModelStatus:
        return await self._change(request, Action.UNLABEL, context, None, _label(request))

    async def ReplaceWorkers(self, request: pb.ReplaceWorkersRequest, context: Any) -> AsyncIterator[pb.ReplacedWorker]:
        if self._replacing:
            raise SyncError("workers are being replaced already; wait until they are")
        self._replacing = True
        try:
            for number in sorted({worker.number for worker in self._workers()}):
                yield of_replaced(await asyncio.to_thread(self._replace, number))
        finally:
            self._replacing = False

    async def _change(
        self,
        request: Any,
        action: Action,
        context: Any,
        number: int | None = None,
        label: str = "",
        serve_at: float | None = None,
    ) -> pb.ModelStatus:
        follower = follower_of(self._models, request.model)
        try:
            return of_status(await wait(follower, action, context, number, label, serve_at))
        finally:
            await self._told()

    def _trainer(self, model: str) -> str:
        trainer: str | None = getattr(self._models.find(model).settings, "trainer", None)
        if trainer is None:
            raise SyncError(
                f"no trainer is configured for model {model!r}: start the inferencer with --trainer HOST:PORT"
            )
        return trainer


def _number(request: pb.PinRequest | pb.LabelRequest) -> int:
    if not request.HasField("version"):
        raise InputError("version", expected="the number of a version", found="none")
    return request.version


def _moment(request: pb.SyncRequest | pb.PinRequest | pb.UnpinRequest | pb.RollbackRequest) -> float | None:
    if not request.HasField("serve_at"):
        return None
    if not request.serve_at - time.time() <= LATEST_MOMENT:  # false for NaN
        raise InputError("serve_at", expected="a time at most an hour ahead", found=request.serve_at)
    return request.serve_at


def _label(request: pb.LabelRequest | pb.UnlabelRequest) -> str:
    return check_label("label", request.label)


def _restoring(events: list[Event]) -> list[pb.SyncProgress]:
    return [of_progress(event) for event in events if event.kind is EventKind.RESTORING]


def seconds_to_wait(left: float | None) -> float | None:
    """Return how long to wait if a caller has `left` seconds, so that the reason for a delay can still be sent.

    None means that there is no deadline.
    """
    return None if left is None else max(0.0, left - min(_MARGIN, left / 5))


async def wait(
    follower: Follower,
    action: Action,
    context: Any,
    number: int | None = None,
    label: str = "",
    serve_at: float | None = None,
) -> Status:
    """Ask a follower for an action, and return its status afterwards.

    Raises the errors of Follower.sync, and shortly before the deadline a TimeoutError with the reason for the delay.
    """
    left: float | None = context.time_remaining()
    answer = asyncio.wrap_future(follower.ask(action, number, label, None, serve_at))
    try:
        return await asyncio.wait_for(answer, seconds_to_wait(left))
    except asyncio.TimeoutError:
        late = await asyncio.to_thread(follower.late, number, left)  # on a thread: `late` may ask another process
        raise TimeoutError(late) from None
