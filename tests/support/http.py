"""A plain HTTP client, and models whose answers show their inputs and the version that answered."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from inferencer.protocols.http.port import HttpPort
from inferencer.protocols.page.page import Page
from inferencer.serving.metrics import Metrics
from inferencer.serving.prometheus import Exposition
from inferencer.transport.listeners import listeners_at, port_of
from inferencer.transport.memory_budget import SHARES, MemoryBudget
from paramsync.rpc.access import Access
from paramsync.rpc.tls import ServerTls
from tests.support.programs import eventually
from tests.support.published import Publisher, Witness
from tests.support.running import LONG, LocalRunning

MB = 1 << 20


@dataclass(frozen=True)
class Got:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        found = self.json
        assert list(found) == ["error"], found
        assert "Traceback" not in found["error"]
        return str(found["error"])


def call(port: int, method: str, path: str, body: Any = None, **headers: str) -> Got:
    """Send a request on a new connection. `body` is bytes, or a value to send as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(method, path, content, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Got(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()


class Plain(Witness):
    """One input and one output: each row times the version."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * tf.add_n([part[0, 0] for part in self.parts]) / len(self.parts)}


class Named(Witness):
    """Two inputs, and outputs of several dtypes; outputs whose names end with `_bytes` are bytes, not text."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, name="count"),
            tf.TensorSpec([None], tf.string, name="said"),
        ]
    )
    def __call__(self, count: tf.Tensor, said: tf.Tensor) -> dict[str, tf.Tensor]:
        version = tf.add_n([part[0, 0] for part in self.parts]) / len(self.parts)
        return {
            "times": tf.cast(count, tf.float32) * version,
            "more": count > 2,
            "said": said,
            "said_bytes": said,
        }


@dataclass(frozen=True)
class Web:
    """An HTTP port of a server that has small limits."""

    rest: HttpPort
    rest_port: int
    loop: asyncio.AbstractEventLoop
    supervisor: Still
    port: int = 0
    control_port: int = 0

    def check_unharmed(self) -> None:
        """Fail unless a good request is answered, and no memory of earlier requests is left."""
        good = call(self.rest_port, "POST", "/v1/models/plain:predict", {"instances": [[1, 2]]})
        assert good.json["predictions"] == [[4.0, 8.0]]
        eventually(lambda: self.rest._budget.taken == 0, lambda: f"{self.rest._budget.taken} bytes to be left")


class Still:
    """A supervisor without models, whose comparisons never end."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def ask(self, *question: Any) -> bytes:
        self.asked.append(question)
        if question[0] == "compare":
            await asyncio.Event().wait()
        return b'{"models":{}}'


@contextmanager
def small_limits(folder: Path, *, patience: float = 1.0, tls: ServerTls | None = None) -> Iterator[Web]:
    """A server of `plain` (version 4), `named` (version 5) and `empty`; bodies up to 4 MB within `patience` seconds."""
    running = LocalRunning(*(folder / name for name in ("plain", "named", "empty")))
    publishers = [Publisher(folder / name) for name in ("plain", "named")]
    for publisher, number, kind in zip(publishers, (4, 5), (Plain, Named), strict=True):
        publisher.publish(number, kind=kind)
        running.server.models.follower(publisher.path.name).sync(timeout=LONG)

    still = Still()

    async def start() -> Web:
        server, metrics = running.server, Metrics(running.server.models)
        budget, access = MemoryBudget(SHARES * 4 * MB), Access(host="127.0.0.1")
        rest = HttpPort(
            server.models,
            server.predicting.batcher,
            metrics,
            Exposition(metrics).text,
            budget,
            server.predicting.kserve,
            access,
            message_bytes=4 * MB,
            page=Page(server.models, still.ask, access),
            patience=patience,
        )
        ports = {"port": running.port, "control_port": running.control_port}
        listeners = listeners_at("127.0.0.1", 0, "--rest-port")
        port = port_of(listeners)
        await rest.start(listeners, tls)
        return Web(rest, port, asyncio.get_running_loop(), still, **ports)

    web = running.call(start)
    yield web
    for publisher in publishers:
        publisher.close()
    running.call(partial(web.rest.close, grace=LONG, quiet_seconds=0.01))
    running.drain()
    running.close()
