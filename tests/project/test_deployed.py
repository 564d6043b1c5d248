"""What is deployed fits together: manifests, the composition and units name what is there, and are confined."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from inferencer.settings import flags
from tests.support.programs import ROOT
from tests.support.prometheus import DEPLOYED, promtool
from trainer import settings

KUBERNETES = ROOT / "deploy" / "kubernetes"
RELEASE = "1.31"
THEIRS = {"Kustomization", "ServiceMonitor", "PrometheusRule"}  # no schema of Kubernetes' own
Document = dict[str, Any]


@cache
def documents() -> list[Document]:
    return [one for file in sorted(KUBERNETES.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text())]


def called(document: Document) -> str:
    return f"{document['kind']}-{document.get('metadata', {}).get('name', '')}"


def of(kind: str) -> dict[str, Document]:
    return {one["metadata"]["name"]: one for one in documents() if one["kind"] == kind}


def pods() -> dict[str, Document]:
    """The template of the pods of each program."""
    return {
        "trainer": of("Job")["paramsync-trainer"]["spec"]["template"],
        "inferencer": of("Deployment")["paramsync-inferencer"]["spec"]["template"],
    }


def ports(pod: Document) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}


def chosen(selector: Document) -> list[str]:
    """The programs whose pods have these labels."""
    return [name for name, pod in pods().items() if selector.items() <= pod["metadata"]["labels"].items()]


@pytest.mark.parametrize("document", [one for one in documents() if one["kind"] not in THEIRS], ids=called)
def test_kubernetes_takes_it(document: Document) -> None:
    kubernetes_validate.validate(document, RELEASE, strict=True)


def test_kustomize_has_every_file() -> None:
    [kustomization] = [one for one in documents() if one["kind"] == "Kustomization"]
    files = {file.name for file in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
    images = {one["name"] for one in kustomization["images"]}
    assert images == {pod["spec"]["containers"][0]["image"] for pod in pods().values()}


def test_services_lead_to_ports_that_pods_have() -> None:
    services = of("Service")
    assert {name: chosen(service["spec"]["selector"]) for name, service in services.items()} == {
        "paramsync-trainer": ["trainer"],
        "paramsync-inferencer": ["inferencer"],
        "paramsync-control": ["inferencer"],
    }
    for service in services.values():
        [program] = chosen(service["spec"]["selector"])
        for port in service["spec"]["ports"]:
            assert ports(pods()[program])[port["targetPort"]] == port["port"]


def test_what_chooses_pods_chooses_those_it_should() -> None:
    deployment, budget = of("Deployment")["paramsync-inferencer"], of("PodDisruptionBudget")["paramsync-inferencer"]
    assert chosen(deployment["spec"]["selector"]["matchLabels"]) == ["inferencer"]
    assert chosen(budget["spec"]["selector"]["matchLabels"]) == ["inferencer"]
    target = of("HorizontalPodAutoscaler")["paramsync-inferencer"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    policies = {
        name: chosen(one["spec"]["podSelector"].get("matchLabels", {})) for name, one in of("NetworkPolicy").items()
    }
    assert policies == {
        "paramsync-nothing": ["trainer", "inferencer"],
        "paramsync-trainer": ["trainer"],
        "paramsync-inferencer": ["inferencer"],
    }
    for name, policy in of("NetworkPolicy").items():
        for rule in policy["spec"].get("ingress", ()):
            assert {port["port"] for port in rule["ports"]} <= ports(pods()[name.removeprefix("paramsync-")]).keys()


def test_metrics_come_by_services_whose_names_alerts_know() -> None:
    services = of("Service").values()
    jobs = set()
    for monitor in of("ServiceMonitor").values():
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        [service] = [one for one in services if wanted <= one["metadata"].get("labels", {}).items()]
        [endpoint] = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        jobs.add(service["metadata"]["name"])
    alerts = (ROOT / "deploy" / "monitoring" / "alerts.yml").read_text()
    assert set(re.findall(r'up\{job="([\w-]+)"\}', alerts)) == jobs
    scraped = yaml.safe_load((ROOT / "deploy" / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    assert {job["job_name"] for job in scraped} == jobs


def test_the_rules_of_the_operator_are_the_alerts() -> None:
    made = subprocess.run([sys.executable, KUBERNETES / "alerts.py"], capture_output=True, check=True, timeout=60)
    assert (KUBERNETES / "alerts.yaml").read_bytes() == made.stdout
    alerts = yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yml").read_text())
    assert of("PrometheusRule")["paramsync"]["spec"] == alerts


def test_pods_are_confined_and_what_they_mount_is_there() -> None:
    claims = of("PersistentVolumeClaim")
    for pod in pods().values():
        spec, [container] = pod["spec"], pod["spec"]["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        assert all(probe in container for probe in ("startupProbe", "readinessProbe", "livenessProbe"))
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
        for volume in volumes.values():
            assert {"emptyDir", "secret"} & volume.keys() or volume["persistentVolumeClaim"]["claimName"] in claims
        tokens = volumes["tokens"]["secret"]
        assert tokens["defaultMode"] == 0o440  # of the group that fsGroup names: a program refuses more
        assert f"secret generic {tokens['secretName']} --from-file=tokens=" in (ROOT / "docs/deploy.md").read_text()


# Commands, wherever they are ------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, list[str]]]:
    """Where a program is started, and its arguments."""
    composition, beyond = (
        yaml.safe_load((ROOT / file).read_text())["services"]
        for file in ("docker-compose.yml", "docker-compose.bucket.yml")
    )
    for name, pod in pods().items():
        [container] = pod["spec"]["containers"]
        yield f"kubernetes-{name}", [*container["command"], *container["args"]]
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
    trainer, inferencer = ((ROOT / "deploy" / "systemd" / f"paramsync-{name}.service").read_text() for name in pods())
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
