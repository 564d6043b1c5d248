"""What is deployed fits together: the composition and units name what is there, and are confined."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from inferencer.settings import flags
from tests.support.programs import ROOT
from tests.support.prometheus import DEPLOYED, promtool
from trainer import settings

# Commands, wherever they are ------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, list[str]]]:
    """Where a program is started, and its arguments."""
    composition, beyond = (
        yaml.safe_load((ROOT / file).read_text())["services"]
        for file in ("docker-compose.yml", "docker-compose.bucket.yml")
    )
    for name in ("trainer", "inferencer"):
        yield f"compose-{name}", composition[name]["command"]
        unit = (ROOT / "deploy" / "systemd" / f"paramsync-{name}.service").read_text()
        yield f"bucket-{name}", beyond[name]["command"]
        yield f"systemd-{name}", re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0].split()


@pytest.mark.parametrize(("where", "command"), [*commands()], ids=[where for where, _ in commands()])
def test_programs_take_the_arguments_that_they_are_given(where: str, command: list[str]) -> None:
    program, given = command[:3], command[3:]
    if where.startswith("systemd"):
        program, given = command[:2], command[2:]
    name = where.rpartition("-")[2]
    assert program[-1] == (name if len(program) == 3 else {"trainer": "train", "inferencer": "serve"}[name])
    if name == "trainer":
        tokens = ["--token-file", "/run/secrets/paramsync/tokens"]  # which is not here to be read
        at = given.index(tokens[0]) if tokens[0] in given else len(given)
        assert given[at : at + 2] in (tokens, [])
        settings.parse([*given[:at], *given[at + 2 :]])
    else:
        flags.parser().parse_args(given)


# The composition ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "healthy"), [(0, True), (1, True), (2, False)])
def test_a_container_that_is_degraded_is_healthy(tmp_path: Path, code: int, healthy: bool) -> None:
    composition = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    kind, command = composition["services"]["inferencer"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    paramsync = tmp_path / "paramsync"
    paramsync.write_text(f"#!/bin/sh\n[ \"$*\" = 'status --check' ] && exit {code}\nexit 9\n")
    paramsync.chmod(0o755)
    shell = ["sh", "-c", command.replace("$$", "$")]
    done = subprocess.run(shell, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False)
    assert (done.returncode == 0) is healthy


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("docker-compose.yml", {"trainer", "inferencer", "prometheus", "grafana"}),
        ("docker-compose.bucket.yml", {"trainer", "inferencer", "inferencer-2", "bucket"}),
    ],
)
def test_every_container_is_confined_and_listens_on_loopback(file: str, names: set[str]) -> None:
    composition = yaml.safe_load((ROOT / file).read_text())
    assert composition["services"].keys() == names
    for name, service in composition["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["pids_limit"], name
        assert service["healthcheck"]["test"], name
        assert all(port.startswith("${PARAMSYNC_BIND:-127.0.0.1}:") for port in service.get("ports", ())), name
        assert service.get("profiles") == (["monitoring"] if name in ("prometheus", "grafana") else None)
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            there = (ROOT / source).exists() if source.startswith("./") else source in composition["volumes"]
            assert there, volume


def test_the_store_in_memory_is_a_tmpfs() -> None:
    composition = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert composition["volumes"]["store"]["driver_opts"]["type"] == "tmpfs"


def test_with_a_bucket_programs_share_no_volume_and_no_network() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.bucket.yml").read_text())["services"]
    bucket = services.pop("bucket")
    assert "ports" not in bucket
    networks = [name for service in services.values() for name in service["networks"]]
    assert sorted(networks) == sorted(bucket["networks"]) == sorted({*networks})
    volumes = [volume.split(":")[0] for service in [*services.values(), bucket] for volume in service["volumes"]]
    assert len(volumes) == len({*volumes})
    for service in services.values():
        assert service["environment"]["AWS_ENDPOINT_URL"] == "http://bucket:8333"
        assert bucket["environment"].items() <= service["environment"].items()
        assert any("s3://paramsync/models/digits" in word for word in service["command"])


def test_secrets_are_files_where_that_is_asked_for() -> None:
    composition = yaml.safe_load((ROOT / "docker-compose.secrets.yml").read_text())
    assert composition["services"].keys() == {"trainer", "inferencer"}
    for service in composition["services"].values():
        [secret] = service["secrets"]
        assert secret in composition["secrets"]
        assert service["environment"] == {"PARAMSYNC_TOKEN": "", "PARAMSYNC_TOKEN_FILE": f"/run/secrets/{secret}"}


def test_by_tls_the_programs_are_started_as_without_and_are_given_what_is_a_secret() -> None:
    plain, tls = (
        yaml.safe_load((ROOT / name).read_text()) for name in ("docker-compose.yml", "docker-compose.tls.yml")
    )
    for name in ("trainer", "inferencer"):
        given, service = plain["services"][name]["command"], tls["services"][name]
        assert service["command"][: len(given)] == given
        paths = {
            value for value in [*service["command"][len(given) :], *service["environment"].values()] if value[0] == "/"
        }
        assert paths == {f"/run/secrets/{secret}" for secret in service["secrets"]}
        assert set(service["secrets"]) == tls["secrets"].keys()
        words = service["command"][3:]
        flags_of_tls = {word for word in words if "tls" in word and word.startswith("--")}
        assert flags_of_tls >= {"--tls-cert", "--tls-key", "--tls-client-ca"}
    scraping = tls["services"]["prometheus"]
    [configuration] = scraping["volumes"]
    [before] = [volume for volume in plain["services"]["prometheus"]["volumes"] if "prometheus.yml" in volume]
    assert configuration == before.replace(
        "./deploy/monitoring/prometheus.yml", "./deploy/monitoring/prometheus-tls.yml"
    )


# systemd --------------------------------------------------------------------------------------------------------------

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_confined_and_say_when_they_are_ready(unit: Path, tmp_path: Path) -> None:
    lines = unit.read_text().splitlines()
    wanted = ["Type=notify", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict", "User=paramsync"]
    assert [line for line in wanted if line not in lines] == []
    if not shutil.which("systemd-analyze"):  # what it says beyond that, it says where systemd is
        return
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("ExecStart=/opt/paramsync/bin/paramsync", f"ExecStart={sys.executable}"))
    for analysis in (["verify"], ["security", "--offline=true", "--threshold=25"]):
        command = ["systemd-analyze", "--no-pager", *analysis, str(copy)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_the_inferencer_may_write_nowhere_in_the_store() -> None:
    trainer, inferencer = (
        (ROOT / "deploy" / "systemd" / f"paramsync-{name}.service").read_text() for name in ("trainer", "inferencer")
    )
    [store] = re.findall(r"--store (\S+)", trainer)
    assert f"digits={store}" in inferencer
    assert "RuntimeDirectory=paramsync\n" in trainer
    assert store.startswith("/run/paramsync/")
    assert not re.search(r"^(RuntimeDirectory|ReadWritePaths)=", inferencer, re.MULTILINE)


# Prometheus -----------------------------------------------------------------------------------------------------------

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
