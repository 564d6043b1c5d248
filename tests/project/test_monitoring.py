"""What is deployed for Prometheus is what Prometheus takes: alerts fire when they should, and name what is told."""

from __future__ import annotations

import re

import yaml

from tests.support.programs import ROOT
from tests.support.prometheus import DEPLOYED, promtool

ALERTS = re.findall(r"- alert: (\w+)", (DEPLOYED / "alerts.yml").read_text())


def test_alerts_fire_and_are_quiet_as_their_cases_say() -> None:
    assert "SUCCESS" in promtool("check", "rules", DEPLOYED / "alerts.yml")
    assert "SUCCESS" in promtool("test", "rules", DEPLOYED / "alerts_test.yml")


def test_each_alert_has_a_case_that_fires_and_one_that_is_quiet() -> None:
    cases = set(re.findall(r'name: "(\w+) (fires|is quiet): ', (DEPLOYED / "alerts_test.yml").read_text()))
    assert cases == {(alert, outcome) for alert in ALERTS for outcome in ("fires", "is quiet")}


def test_the_page_says_what_to_do_about_each_alert() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert re.findall(r"^\| `(Paramsync\w+)`", page, re.MULTILINE) == ALERTS


def test_prometheus_takes_its_configuration() -> None:
    assert "SUCCESS" in promtool("check", "config", DEPLOYED / "prometheus.yml")


def test_prometheus_scrapes_the_same_by_tls() -> None:
    plain, tls = (yaml.safe_load((DEPLOYED / name).read_text()) for name in ("prometheus.yml", "prometheus-tls.yml"))
    for job in plain["scrape_configs"]:
        job.update(scheme="https", tls_config={"ca_file": "/run/secrets/tls_ca"})
    assert tls == plain
