"""`python -m bench tls`: answers a second by TLS beside those in plain, of two servers of one store, by turns."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench import h2load, networks
from bench.callers import Task, callers
from bench.ours import Publications
from bench.progress import Progress
from bench.served import PREDICT, Served, request
from bench.settings import Settings

CONCURRENCIES = (1, 8, 64)
_PARAMETERS = 6  # 784-256-256-10
_INPUT = "x"
_PROCESSES = 2  # of callers in Python, where no compiled one is installed
_CERTIFICATE = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"

Rate = Callable[[str, Path | None, int], float]
"""Answers a second of this address, which shows that certificate, by so many callers."""


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    network = networks.dense(_PARAMETERS)
    names = [spec.name for spec in network.captured.graph.parameters]
    with Publications(folder / "store", network.captured) as store:
        values = {name: one.numpy() for name, one in zip(names, network.captured.variables, strict=True)}
        version = store.publish(values).number
    asked = folder / "request"
    asked.write_bytes(request({_INPUT: np.random.default_rng(0).random((1, 784), np.float32)}))
    shown, key = _certificate(folder)
    by_tls = ("--tls-cert", str(shown), "--tls-key", str(key))
    with (
        Served.inferencer(folder / "store") as plain,
        Served.inferencer(folder / "store", *by_tls, certificate=shown) as tls,
        Progress() as progress,
    ):
        for server in (plain, tls):
            server.ask_until(asked.read_bytes(), version)
        servers = {"plain": (plain, None), "tls": (tls, shown)}
        samples = _rates(servers, asked, settings, progress)
    medians = {key: statistics.median(rates) for key, rates in samples.items()}
    figures: dict[str, Any] = {
        "benchmark": settings.benchmark,
        "bytes": network.size,
        "load_generator": h2load.PROGRAM if h2load.is_installed() else "grpc.aio",
        "absent": {},
    }
    for count in CONCURRENCIES:
        for name in servers:
            figures[f"{name}_per_second_c{count}"] = medians[name, count]
        figures[f"tls_over_plain_c{count}"] = medians["tls", count] / medians["plain", count]
    return figures | {"samples_per_second": {f"{name}_c{count}": rates for (name, count), rates in samples.items()}}


def _rates(
    servers: dict[str, tuple[Served, Path | None]], asked: Path, settings: Settings, progress: Progress
) -> dict[tuple[str, int], list[float]]:
    """By turns."""
    samples: dict[tuple[str, int], list[float]] = {}
    with callers(_PROCESSES) as calling:

        def by_python(address: str, certificate: Path | None, count: int) -> float:
            roots = "" if certificate is None else str(certificate)
            return calling.call(Task(address, PREDICT, str(asked), count, settings.seconds, roots=roots)).rate

        def by_h2load(address: str, certificate: Path | None, count: int) -> float:
            scheme = "http" if certificate is None else "https"
            target = h2load.Target.grpc(address, PREDICT, asked.read_bytes(), asked.with_name("framed"), scheme=scheme)
            return h2load.closed(target, count, settings.seconds).rate

        rate: Rate = by_h2load if h2load.is_installed() else by_python
        for number in progress.track(range(settings.runs), settings.runs):
            for count in CONCURRENCIES:
                for name in sorted(servers, reverse=bool(number % 2)):
                    server, certificate = servers[name]
                    found = rate(server.addresses["predictions"], certificate, count)
                    samples.setdefault((name, count), []).append(found)
    return samples


def _certificate(folder: Path) -> tuple[Path, Path]:
    """One that signs itself, and its key."""
    shown, key = folder / "server.pem", folder / "server.key"
    files = ("-keyout", key, "-out", shown, "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run([*_CERTIFICATE.split(), *files], check=True, capture_output=True)
    key.chmod(0o600)
    return shown, key
