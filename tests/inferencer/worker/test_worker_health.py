"""What a worker whose every request fails says of itself, until it is replaced."""

from __future__ import annotations

import asyncio
import socket

from grpc_health.v1 import health_pb2

from inferencer.processes.channel import Channel
from inferencer.serving.metrics import Metrics
from inferencer.transport.health import Health
from inferencer.worker.models import EpochModels


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_health_says_that_every_request_fails_and_is_well_again_after_one_that_does_not() -> None:
    async def check() -> None:
        clock = Clock()
        metrics = Metrics(clock=clock)
        here, there = socket.socketpair()
        models = EpochModels(dict, Channel(here, {}, name="supervisor"))
        models.failing = lambda: metrics.failing
        health = Health(models, [])
        following = asyncio.ensure_future(health.follow())
        await asyncio.sleep(0)

        async def serves() -> bool:
            found = await health.Check(health_pb2.HealthCheckRequest(), None)
            return bool(found.status == health_pb2.HealthCheckResponse.SERVING)

        def answered(code: str) -> None:
            called = {"model": "m", "signature": "s", "version": "1", "protocol": "tfs"}
            metrics.answered(**called, code=code, seconds=0.1, unforeseen=code != "OK")

        assert await serves()
        for _ in range(100):
            answered("INTERNAL")
            clock.now += 1.0
        assert not await serves()
        assert "failed in ways nobody foresaw" in models.missing()["workers"]
        answered("OK")
        assert await serves()
        following.cancel()
        here.close()
        there.close()

    asyncio.run(check())
