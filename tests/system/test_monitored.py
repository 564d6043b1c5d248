"""A real Prometheus, with the configuration and the alerts that are deployed, scrapes real pages of both programs."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from paramsync.publishing.control_port import Training
from paramsync.publishing.publisher import Publisher as Publishing
from tests.support.programs import eventually
from tests.support.prometheus import DEPLOYED, program, queries
from tests.support.published import Publisher
from tests.support.running import LONG, Running, refused, request
from tests.support.training import ON_REQUEST, Counters
from trainer.metrics import MetricsPort, TrainerMetrics

pytestmark = pytest.mark.slow

Ask = Callable[..., Any]


@dataclass
class Saved:
    """A training state of step 5."""

    saved: int | None = 5
    error: str | None = None


@contextmanager
def trainer(folder: Path) -> Iterator[str]:
    """The address of a trainer's page: it has published step 7, and is at step 9."""
    with Publishing(folder, Counters(), schedule=ON_REQUEST) as publisher:
        publisher.publish(7, wait=True)
        publisher.meter.advance(9, tf.constant(0.5), time.monotonic())
        training = Training(publisher=publisher, device="CPU", state=Saved())
        with closing(MetricsPort("127.0.0.1", 0, TrainerMetrics(lambda: training).registry)) as port:
            yield port.address


@contextmanager
def prometheus(folder: Path, *, inferencer: str, trainer: str) -> Iterator[Ask]:
    """Asks one that scrapes these addresses."""
    folder.mkdir()
    (folder / "alerts.yml").write_text((DEPLOYED / "alerts.yml").read_text())
    configuration = (DEPLOYED / "prometheus.yml").read_text().replace("5s", "200ms")
    for deployed, here in (("inferencer:8501", inferencer), ("trainer:8504", trainer)):
        assert deployed in configuration
        configuration = configuration.replace(deployed, here)
    (folder / "prometheus.yml").write_text(configuration)
    options = {
        "--config.file": folder / "prometheus.yml",
        "--storage.tsdb.path": folder / "data",
        "--web.listen-address": "127.0.0.1:0",
    }
    command = [program("prometheus"), *(f"{option}={value}" for option, value in options.items())]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        said = partial((folder / "log").read_text)
        address = eventually(lambda: re.search(r"Listening on\" address=(\S+)", said()), said)[1]
        eventually(lambda: "Server is ready" in said(), said)

        def ask(what: str, **arguments: str) -> Any:
            query = urllib.parse.urlencode(arguments)
            with urllib.request.urlopen(f"http://{address}/api/v1/{what}?{query}", timeout=LONG) as answer:
                return json.load(answer)["data"]

        yield ask
    finally:
        process.terminate()
        process.wait(LONG)


def wait_for_data(ask: Ask, missing: list[str]) -> None:
    """Wait until each of the queries has data."""

    def look() -> bool:
        missing[:] = [query for query in missing if not ask("query", query=query)["result"]]
        return not missing

    eventually(look, lambda: f"data of {missing}")


def test_each_query_of_the_dashboard_has_data(served: Running, publisher: Publisher, tmp_path: Path) -> None:
    served.prediction_service.Predict(request(), timeout=LONG)
    refused(served.prediction_service.Predict, request("other"))
    inferencer = f"127.0.0.1:{served.rest_port}"
    with (
        trainer(tmp_path / "trained") as address,
        prometheus(tmp_path / "prometheus", inferencer=inferencer, trainer=address) as ask,
    ):
        wait_for_data(ask, queries(rate_interval="10s"))
        publisher.publish_bad(9)
        eventually(
            lambda: [
                one for one in ask("alerts")["alerts"] if one["labels"]["alertname"] == "ParamsyncVersionQuarantined"
            ],
            lambda: f"the alert, beside {ask('alerts')}",
        )
