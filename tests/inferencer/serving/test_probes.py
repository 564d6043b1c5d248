"""What Kubernetes asks of a pod is answered as the manifest needs it: live at once, ready with a version."""

from __future__ import annotations

import urllib.error
import urllib.request

import yaml

from tests.support.programs import ROOT
from tests.support.published import Publisher
from tests.support.running import LONG, LocalRunning, synced


def test_a_pod_is_live_before_it_is_ready(running: LocalRunning, publisher: Publisher) -> None:
    text = (ROOT / "deploy" / "kubernetes" / "inferencer.yaml").read_text()
    deployment = next(one for one in yaml.safe_load_all(text) if one["kind"] == "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]

    def answered(probe: str) -> int:
        path = container[probe]["httpGet"]["path"]
        assert container[probe]["httpGet"]["port"] == "http"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{running.rest_port}{path}", timeout=LONG) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return int(error.code)

    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert [answered(probe) for probe in probes] == [200, 200, 503]
    publisher.publish(7)
    synced(running)
    assert [answered(probe) for probe in probes] == [200, 200, 200]
