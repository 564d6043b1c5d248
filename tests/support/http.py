"""A plain HTTP client, and models whose answers show their inputs and the version that answered."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from paramsync.rpc.tls import TlsFiles
from tests.support.in_process import InProcess
from tests.support.programs import eventually
from tests.support.published import Publisher, Witness
from tests.support.running import LONG

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


@contextmanager
def small_limits(folder: Path, *, patience: float = 1.0, tls: TlsFiles | None = None) -> Iterator[InProcess]:
    """A server of `plain` (version 4), `named` (version 5) and `empty`; bodies up to 4 MB within `patience` seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inferencer.protocols.http.port._PATIENCE", patience)
        stores = [folder / name for name in ("plain", "named", "empty")]
        running = InProcess(*stores, message_bytes=4 * MB, tls=tls)
    for store, number, kind in zip(stores, (4, 5), (Plain, Named), strict=False):
        with closing(Publisher(store)) as publisher:
            running.restore(publisher.publish(number, kind=kind), store.name)
    yield running
    running.close()


def check_unharmed(web: InProcess) -> None:
    """Fail unless a good request is answered, and no memory of earlier requests is left."""
    good = call(web.rest_port, "POST", "/v1/models/plain:predict", {"instances": [[1, 2]]})
    assert good.json["predictions"] == [[4.0, 8.0]]
    budget = web.server.budget
    eventually(lambda: budget.taken == 0, lambda: f"{budget.taken} bytes to be left")
