"""The systems that serve: how each is started, asked, told of versions, and ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import numpy as np

from bench.peers import environments
from bench.peers.protocols import Bytes, Json, KServe, KServeBytes, Protocol, TfServing
from bench.served import MODEL
from bench.settings import environment_of_peers
from paramsync.errors import CallError
from paramsync.host.processes import processors

_SERVERS = Path(__file__).parent / "servers"
_PATIENCE = 120.0  # seconds until the first answer
_END = 15.0
_AGAIN = 0.05

Command = Callable[[str, Path, int, Path], list[str]]
"""Of a kind of network, the folder of its versions, a port, and the cache of environments."""


@dataclass(frozen=True, slots=True)
class System:
    """`way` is how versions are published to it; `told` says in a few words how it learns of one."""

    name: str
    title: str
    protocol: Protocol
    way: str
    told: str
    command: Command
    clean: bool = True  # in an environment without anything of ours

    def prepare(self, cache: Path) -> None:
        """Raises InstallError where it cannot be had."""
        if self.name in environments.PACKAGES:
            environments.python(self.name, cache)


def _ours(workers: int) -> Command:
    def command(kind: str, folder: Path, port: int, cache: Path) -> list[str]:
        ports = ["--port", str(port), "--rest-port", "0", "--control-port", "0"]
        state = ["--state", str(folder.with_name(f"{folder.name}-state"))]
        model = ["--model", f"{MODEL}={folder}", "--workers", str(workers)]
        return [sys.executable, "-m", "paramsync.cli", "serve", *model, *ports, *state]

    return command


def _emulation(kind: str, folder: Path, port: int, cache: Path) -> list[str]:
    return [sys.executable, "-m", "bench.peers.emulation", str(folder), "--port", str(port)]


def _peer(name: str, script: str) -> Command:
    def command(kind: str, folder: Path, port: int, cache: Path) -> list[str]:
        python, count = environments.python(name, cache), processors()
        arguments = [kind, str(folder), "--port", str(port), "--workers", str(count)]
        return [str(python), str(_SERVERS / script), *arguments]

    return command


SYSTEMS = {
    system.name: system
    for system in (
        System("ours_1", "paramsync, 1 worker", TfServing(), "store", "follows its store", _ours(1), clean=False),
        System(
            "ours_n",
            f"paramsync, {max(2, processors())} workers",
            TfServing(),
            "store",
            "follows its store",
            _ours(max(2, processors())),
            clean=False,
        ),
        System(
            "tf_serving_emulated",
            "TF Serving's way, emulated",
            TfServing(),
            "savedmodel",
            "looks each second for a new SavedModel, loads it, warms it up",
            _emulation,
            clean=False,
        ),
        System(
            "triton",
            "Triton (PyTriton)",
            KServe(),
            "arrays",
            "its callable computes with what a thread has loaded",
            _peer("triton", "run_triton.py"),
        ),
        System(
            "mlserver",
            "MLServer",
            KServeBytes(),
            "arrays",
            "told to load the model again, by its repository API",
            _peer("mlserver", "run_mlserver.py"),
        ),
        System(
            "ray_serve",
            "Ray Serve",
            Bytes(),
            "arrays",
            "told another user_config, by which replicas reconfigure themselves",
            _peer("ray_serve", "run_ray_serve.py"),
        ),
        System(
            "litserve",
            "LitServe",
            Json(),
            "arrays",
            "the process that computes follows, in a thread",
            _peer("litserve", "run_litserve.py"),
        ),
    )
}
OURS = ("ours_1", "ours_n")


class Running:
    """A server and all that it starts, which end with the block."""

    def __init__(self, system: System, kind: str, folder: Path, cache: Path) -> None:
        self.system = system
        port = _free_port()
        self.address = f"127.0.0.1:{port}"
        self._log = folder.with_name(f"{folder.name}-{time.monotonic_ns()}.log")
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                system.command(kind, folder, port, cache),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment_of_peers() if system.clean else None,
                start_new_session=True,
            )

    def ask_until(self, x: np.ndarray[Any, Any], expected: Callable[[np.ndarray[Any, Any]], bool]) -> None:
        """Ask again until an answer is as expected. Raises CallError where none comes in time."""
        end, last = time.monotonic() + _PATIENCE, "no answer"
        bell = threading.Event()
        while time.monotonic() < end and self._process.poll() is None:
            try:
                answer = self.system.protocol.ask(self.address, x)
                if expected(answer):
                    return
                last = f"answered {answer.reshape(-1)[:3]}"
            except (OSError, grpc.RpcError) as error:
                last = " ".join(str(error).split())[:200]
            bell.wait(_AGAIN)
        said = "\n".join(self._log.read_text(errors="replace").splitlines()[-8:])
        raise CallError(f"{self.system.name}: {last}; the end of its log:\n{said}", "DEADLINE_EXCEEDED")

    def close(self) -> None:
        """As Ctrl-C ends it; what is left of its session is killed."""
        for number, patience in ((signal.SIGINT, _END), (signal.SIGTERM, _END), (signal.SIGKILL, _END)):
            if self._process.poll() is None:
                self._process.send_signal(number)
                try:
                    self._process.wait(patience)
                except subprocess.TimeoutExpired:
                    continue
            break
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _free_port() -> int:
    """With the next one free too: some speak HTTP there."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
