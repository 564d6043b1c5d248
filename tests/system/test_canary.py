"""The worked example of a canary: Envoy, as configured, before a server with two labelled versions."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from paramsync.v1 import sync_pb2 as pb
from tests.support.envoy import Envoy
from tests.support.inferencers import LONG, Process
from tests.support.programs import ROOT, eventually
from tests.support.published import Publisher

pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "deploy" / "envoy" / "labels.yaml"


def resources(percent: int, http_address: str) -> dict[str, Any]:
    """The example for ports of this machine, with another share."""
    text = EXAMPLE.read_text()
    host, _, port = http_address.rpartition(":")
    for old, new in (
        ("address: paramsync-inferencer, port_value: 8501", f"address: {host}, port_value: {port}"),
        ("address: 0.0.0.0, port_value: 8080", "address: 127.0.0.1, port_value: 0"),
        ("numerator: 5 ", f"numerator: {percent} "),
    ):
        assert old in text
        text = text.replace(old, new)
    return dict(yaml.safe_load(text)["static_resources"])


def asked(address: str, times: int) -> list[int]:
    """The versions of answers."""
    versions = []
    with closing(http.client.HTTPConnection(address, timeout=LONG)) as connection:
        for _ in range(times):
            connection.request("POST", "/v1/models/m:predict", b'{"inputs": [[1, 1]]}')
            answer = connection.getresponse()
            assert (answer.status, bool(json.loads(answer.read()))) == (200, True)
            versions.append(int(answer.headers["Paramsync-Version"]))
    return versions


def test_envoy_puts_a_label_into_as_many_paths_as_the_example_says(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "m")
    with closing(publisher), closing(Process.of(publisher.path, workers=1)) as program:
        program.connect()
        for number, label in ((1, "stable"), (2, "canary"), (3, "")):
            publisher.publish(number)
            *_, _ = program.sync.Sync(pb.SyncRequest(), timeout=LONG)
            if label:
                program.sync.Label(pb.LabelRequest(model="m", label=label, version=number), timeout=LONG)
        for percent, versions in ((0, {1}), (100, {2})):
            with Envoy(tmp_path / f"envoy-{percent}", resources(percent, program.http_address)) as envoy:
                assert {*asked(envoy.address("http"), 50)} == versions
        with Envoy(tmp_path / "envoy", resources(50, program.http_address)) as envoy:
            seen: set[int] = set()

            def came() -> bool:
                seen.update(asked(envoy.address("http"), 10))
                return seen == {1, 2}

            eventually(came, lambda: f"answers of both versions, not {seen} alone")
