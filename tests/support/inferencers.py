"""A real inferencer in a process of its own, its log, and stock clients that call it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from grpc_health.v1 import health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from paramsync.v1 import sync_pb2_grpc
from tests.support.programs import PATIENCE
from tests.support.published import GATED_OPS

LONG = 60.0
Predict = Any  # a stock client's method


class Process:
    """A real inferencer, and its log."""

    def __init__(
        self,
        *arguments: str | Path,
        descriptors: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """The process may open `descriptors` files and connections; its environment is ours by default."""
        command = [sys.executable, "-m", "inferencer", *map(str, arguments), "--port", "0", "--control-port", "0"]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$0" "$@"', *command]
        self.lines: list[str] = []
        self._ready = threading.Event()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", env=environment)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @classmethod
    def of(cls, store: Path, *, workers: int | None = None) -> Process:
        """Start an inferencer of one model, `m`."""
        allowed = (word for op in GATED_OPS for word in ("--allow-op", op))
        return cls("--model", f"m={store}", *allowed, *(() if workers is None else ("--workers", str(workers))))

    def __enter__(self) -> Process:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "inferencer ready" in line:
                self._ready.set()
        self._ready.set()

    def connect(self) -> None:
        if not self._ready.wait(PATIENCE):
            self.close()
            raise AssertionError("".join(self.lines))
        ready = r"inferencer ready: predictions (\S+), control (\S+), HTTP (\S+)$"
        ports = re.search(ready, "".join(self.lines), re.MULTILINE)
        assert ports is not None, "".join(self.lines)
        self.address = ports[1]
        self.predictions = grpc.insecure_channel(self.address)
        self.control_address = ports[2]
        self.control = grpc.insecure_channel(self.control_address)
        self.http_address = ports[3]
        self.sync = sync_pb2_grpc.SyncStub(self.control)
        self.predict = prediction_service_pb2_grpc.PredictionServiceStub(self.predictions).Predict
        self.health = health_pb2_grpc.HealthStub(self.predictions)

    @property
    def workers(self) -> list[int]:
        """The pids of the workers and, for a while, of trials."""
        return [pid for pid in _children(self.process.pid) if pid != self.template]

    @property
    def template(self) -> int:
        """The pid of the template, from which workers are forked: the supervisor's first child."""
        return min(_children(self.process.pid))

    def http(self, method: str, path: str, content: Any = None) -> tuple[int, Any, bool]:
        """Status and body of an answer, and whether the connection stays open."""
        connection = http.client.HTTPConnection(self.http_address, timeout=LONG)
        connection.request(method, path, None if content is None else json.dumps(content))
        answer = connection.getresponse()
        body = json.loads(answer.read())
        stays = not answer.will_close
        connection.close()
        return answer.status, body, stays

    def metrics(self) -> dict[str, float]:
        """Each metric, summed over its labels."""
        connection = http.client.HTTPConnection(self.http_address, timeout=LONG)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] += sample.value  # type: ignore[assignment]
        return dict(found)

    def end(self, *signals: signal.Signals) -> int:
        for one in signals:
            self.process.send_signal(one)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(LONG)
        self._reader.join(LONG)
        return code

    def close(self) -> None:
        self.process.kill()
        self.ended()
        assert self.process.stderr is not None
        self.process.stderr.close()
        for channel in (getattr(self, "predictions", None), getattr(self, "control", None)):
            if channel is not None:
                channel.close()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            found += map(int, path.read_text().split())
    return found


def of_witness() -> predict_pb2.PredictRequest:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = "m"
    message.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones([1, 2], np.float32)))
    return message


def of_gated(called: Path, gate: Path) -> predict_pb2.PredictRequest:
    message = of_witness()
    message.inputs["called"].CopyFrom(tf.make_tensor_proto(str(called)))
    message.inputs["gate"].CopyFrom(tf.make_tensor_proto(str(gate)))
    return message
