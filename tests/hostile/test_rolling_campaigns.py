"""A fleet behind one address, whose servers are replaced one after another while versions come and clients ask."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.buckets import SeaweedFs
from tests.support.envoy import Envoy, by_connections, by_requests, cluster
from tests.support.imitated import Pod, Trainer
from tests.support.inferencers import LONG, Process, of_witness
from tests.support.kubectl import pods, variant
from tests.support.programs import ROOT, eventually

pytestmark = pytest.mark.slow
CLIENTS = 8  # of each kind
KINDS = ("grpc", "http")
GATEWAYS = {"connections": by_connections, "requests": by_requests}
TOGETHER = 2.0  # seconds after its publication in which every follower has a version, to serve it at one moment


class Fleet:
    """Pods of the base behind Envoy. A pod is replaced as a rolling update with maxUnavailable 0 does."""

    def __init__(self, folder: Path, server: SeaweedFs, envoy: Envoy, stack: ExitStack, count: int) -> None:
        self._folder, self._server, self._envoy, self._stack = folder, server, envoy, stack
        self._address = f"s3://{server.bucket}/models/digits"
        self._made = 0
        self.servers = [self._start() for _ in range(count)]
        self._route()

    def replace(self, at: int) -> None:
        """Start a server, send it requests once it is ready, and have the old one leave; it ends by itself."""
        old, self.servers[at] = self.servers[at], self._start()
        self._route()  # preStop waits until this has happened
        assert old.end(signal.SIGTERM) == 0
        old.close()

    def _start(self) -> Process:
        self._made += 1
        spec = pods(variant("base"))["paramsync-inferencer"]
        folder = self._folder / f"pod-{self._made}"
        pod = Pod(spec, "base", folder, self._server.environment, MODEL="m", ADDRESS=self._address)
        server = pod.start_server("--workers", "1")
        self._stack.callback(server.close)
        server.connect()
        eventually(lambda: pod.is_ready(server), lambda: "".join(server.lines[-20:]))
        return server

    def _route(self) -> None:
        grpc, http = ([getattr(one, name) for one in self.servers] for name in ("address", "http_address"))
        self._envoy.route({"grpc": grpc, "http": http})


class Clients:
    """Processes that ask by one kind of call each; see tests.hostile.campaigns.fleet."""

    def __init__(self, envoy: Envoy) -> None:
        request = of_witness().SerializeToString().hex()
        self._answered = dict.fromkeys(KINDS, 0)
        self._said: dict[str, str] = {}
        self._processes, self._readers = {}, []
        for kind in KINDS:
            command = [sys.executable, "-m", "tests.hostile.campaigns.fleet", kind, envoy.address(kind)]
            command += [str(CLIENTS), request]
            self._processes[kind] = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            self._readers.append(threading.Thread(target=self._read, args=(kind,)))
            self._readers[-1].start()

    def _read(self, kind: str) -> None:
        pipe = self._processes[kind].stdout
        assert pipe is not None
        for line in pipe:
            if line.startswith("{"):
                self._said[kind] = line
            else:
                self._answered[kind] = int(line)
        pipe.close()

    @property
    def answered(self) -> int:
        return sum(self._answered.values())

    def end(self) -> dict[str, dict[str, Any]]:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process, reader in zip(self._processes.values(), self._readers, strict=True):
            assert process.wait(LONG) == 0
            reader.join(LONG)
        return {kind: json.loads(said) for kind, said in self._said.items()}


@contextmanager
def publishing(trainer: Trainer, serve_after: float | None) -> Iterator[list[int]]:
    """Within this context versions come, one as soon as the one before is in the bucket and a moment has passed."""
    over, published = threading.Event(), [1]

    def publish() -> None:
        while not over.wait(0.5):
            trainer.publish(published[-1] + 1, serve_after=serve_after)
            published.append(published[-1] + 1)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield published
    finally:
        over.set()
        thread.join(LONG)


@pytest.mark.parametrize(("shared", "serve_after"), [("connections", None), ("requests", None), ("requests", TOGETHER)])
def test_a_fleet_is_replaced_while_versions_come_and_no_request_fails(
    shared: str, serve_after: float | None, tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    count, rounds, requests = (4, 2, 100_000) if whole else (2, 1, 2_000)
    with ExitStack() as stack:
        server = stack.enter_context(SeaweedFs(tmp_path / "server"))
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        trainer = Trainer(tmp_path / "m", f"s3://{server.bucket}/models/digits")
        stack.callback(trainer.close)
        trainer.publish(1)
        clusters = [cluster("grpc", h2=True), cluster("http", h2=False)]
        resources = {"listeners": [GATEWAYS[shared](kind) for kind in KINDS], "clusters": clusters}
        envoy = stack.enter_context(Envoy(tmp_path / "envoy", resources))
        fleet = Fleet(memory, server, envoy, stack, count)
        clients = Clients(envoy)
        with publishing(trainer, serve_after) as published:
            for at in [*range(count)] * rounds:
                fleet.replace(at)
            eventually(lambda: clients.answered >= requests, lambda: f"{requests} answers of {clients.answered}")
        seen = clients.end()
    sys.stdout.write(
        f"{rounds * count} servers replaced, {len(published)} versions, {serve_after} s ahead, by {shared}: {seen}\n"
    )
    assert sum(one["answered"] for one in seen.values()) >= requests
    assert [one["failed"] for one in seen.values()] == [{}, {}]
    assert [one["mixed"] for one in seen.values()] == [0, 0]
    if whole and shared == "connections":
        # A leaving server keeps its version while it answers: by then its callers find the same or a newer one.
        assert seen["grpc"]["backwards"] == 0
