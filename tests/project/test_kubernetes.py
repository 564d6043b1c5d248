"""The manifests: each variant is built, is taken by Kubernetes, names what is there, and is confined."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from inferencer.settings import flags
from paramsync.cli import arguments
from tests.support.kubectl import (
    KUBERNETES,
    VARIANTS,
    Document,
    built,
    container,
    containers,
    kserve_pod,
    of,
    pods,
    variant,
    words,
)
from tests.support.programs import ROOT
from tests.support.prometheus import promtool
from trainer import settings

RELEASE = "1.31"
POD_SECURITY = "pod-security.kubernetes.io/enforce"
OTHERS = {
    "ServiceMonitor",
    "PrometheusRule",
    "HTTPRoute",
    "GRPCRoute",
    "AnalysisTemplate",
    "ClusterServingRuntime",
    "ClusterStorageContainer",
}
"""Kinds that are not Kubernetes' own; tests/project/test_schemas.py has their schemas."""
FAILURES = "INTERNAL|UNKNOWN|UNAVAILABLE|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED"


def called(document: Document) -> str:
    return f"{document['kind']}-{document['metadata']['name']}"


def chosen(name: str, selector: Document) -> list[str]:
    """The owners of the pods of a variant that have these labels."""
    return [
        one["metadata"]["name"]
        for one in variant(name)
        if one["kind"] in ("Deployment", "DaemonSet", "Job")
        and selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()
    ]


def all_pods() -> Iterator[tuple[str, str, Document]]:
    """The variant, the owner and the spec of each pod."""
    for name in VARIANTS:
        for owner, pod in pods(variant(name)).items():
            yield name, owner, pod
    example = yaml.safe_load((KUBERNETES / "kserve" / "digits.yaml").read_text())
    address = example["spec"]["predictor"]["model"]["storageUri"]
    yield "kserve", "digits", kserve_pod(example["metadata"]["name"], address)


ALL_PODS = [*all_pods()]
PROGRAMS = [
    pytest.param(name, one, id=f"{name}-{owner}-{one['name']}")
    for name, owner, pod in ALL_PODS
    for one in containers(pod)
]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(one, id=f"{name}-{called(one)}")
        for name in VARIANTS
        for one in variant(name)
        if one["kind"] not in OTHERS
    ],
)
def test_kubernetes_takes_it(document: Document) -> None:
    kubernetes_validate.validate(document, RELEASE, strict=True)


def test_kubernetes_takes_the_pod_that_kserve_makes() -> None:
    *_, (_, name, spec) = ALL_PODS
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    kubernetes_validate.validate(pod, RELEASE, strict=True)


def test_each_file_belongs_to_a_variant() -> None:
    made = {KUBERNETES / "kserve" / "digits.yaml"}  # an example
    for kustomization in KUBERNETES.rglob("kustomization.yaml"):
        content = yaml.safe_load(kustomization.read_text())
        named = [*content.get("resources", ()), *content.get("configurations", ())]
        named += [patch["path"] for patch in content.get("patches", ()) if "path" in patch]
        made |= {kustomization, *((kustomization.parent / name).resolve() for name in named)}
    assert {file for file in KUBERNETES.rglob("*.yaml") if file not in made} == set()
    assert {kustomization.parent.name for kustomization in KUBERNETES.glob("*/kustomization.yaml")} == {
        *VARIANTS,
        "inferencer",
        "peers",
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_all_images_are_the_one_that_a_registry_is_put_before(name: str) -> None:
    text = yaml.safe_dump(variant(name))
    assert set(re.findall(r"\bimage: (\S+)", text)) == ({"paramsync:latest"} if name != "monitoring" else set())


def overlaid(name: str, component: str, tmp_path: Path) -> list[Document]:
    """The objects of a user's own overlay: a variant with a component."""
    folder = tmp_path / "paramsync"
    subprocess.run(["cp", "-r", KUBERNETES, folder], check=True)
    (folder / "own").mkdir()
    own = {"resources": [f"../{name}"], "components": [f"../{component}"]}
    (folder / "own" / "kustomization.yaml").write_text(yaml.safe_dump(own))
    return built(folder / "own")


@pytest.mark.parametrize("provider", ["eks", "gke", "aks"])
@pytest.mark.parametrize("name", ["base", "sidecar", "node", "canary"])
def test_a_role_of_a_provider_is_laid_over_a_variant(name: str, provider: str, tmp_path: Path) -> None:
    documents = overlaid(name, f"identity/{provider}", tmp_path)
    accounts = {one["metadata"]["name"]: one["metadata"] for one in documents if one["kind"] == "ServiceAccount"}
    for owner in documents:
        if owner["kind"] in ("Deployment", "DaemonSet"):
            assert len(accounts[owner["spec"]["template"]["spec"]["serviceAccountName"]]["annotations"]) == 1
            labels = owner["spec"]["template"]["metadata"]["labels"]
            assert ("azure.workload.identity/use" in labels) is (provider == "aks")
    for document in documents:
        if document["kind"] not in OTHERS:
            kubernetes_validate.validate(document, RELEASE, strict=True)


@pytest.mark.parametrize("name", ["base", "sidecar", "node", "canary"])
def test_a_cluster_without_operators_takes_the_servers(name: str) -> None:
    kinds = {one["kind"] for one in variant(name)} & OTHERS
    assert kinds == ({"HTTPRoute", "GRPCRoute", "AnalysisTemplate"} if name == "canary" else set())


@pytest.mark.parametrize("name", ["base", "sidecar", "node", "canary"])
def test_each_program_that_reads_the_bucket_has_the_keys_if_there_are_any(name: str) -> None:
    readers = [
        one for pod in pods(variant(name)).values() for one in containers(pod) if "$(ADDRESS)" in str(one.get("args"))
    ]
    assert readers
    for reader in readers:
        assert {"secretRef": {"name": "paramsync-keys", "optional": True}} in reader["envFrom"], reader["name"]


# What chooses what ----------------------------------------------------------------------------------------------------

OWNERS = {
    "base": {"paramsync-inferencer"},
    "volume": {"paramsync-inferencer", "paramsync-trainer"},
    "sidecar": {"paramsync-inferencer"},
    "node": {"paramsync-inferencer", "paramsync-mirror"},
    "canary": {"paramsync-inferencer", "paramsync-inferencer-canary"},
}


@pytest.mark.parametrize("name", OWNERS)
def test_services_lead_to_ports_that_pods_have(name: str) -> None:
    assert pods(variant(name)).keys() == OWNERS[name]
    services = of(name, "Service")
    chooses = {service: chosen(name, one["spec"]["selector"]) for service, one in services.items()}
    expected = {owner: [owner] for owner in OWNERS[name] if owner != "paramsync-mirror"}
    expected |= {owner.replace("inferencer", "control"): [owner] for owner in expected if "inferencer" in owner}
    assert chooses == expected
    for service, [owner] in chooses.items():
        [program] = pods(variant(name))[owner]["containers"]
        ports = {port["name"]: port["containerPort"] for port in program["ports"]}
        for port in services[service]["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]


@pytest.mark.parametrize("name", OWNERS)
def test_what_chooses_pods_chooses_those_it_should(name: str) -> None:
    for owner, deployment in of(name, "Deployment").items():
        assert chosen(name, deployment["spec"]["selector"]["matchLabels"]) == [owner]
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        [spread] = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert chosen(name, spread["labelSelector"]["matchLabels"]) == [owner]
        assert chosen(name, of(name, "PodDisruptionBudget")[owner]["spec"]["selector"]["matchLabels"]) == [owner]
        target = of(name, "HorizontalPodAutoscaler")[owner]["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) == ("Deployment", owner)
    policies = of(name, "NetworkPolicy")
    chooses = {one: set(chosen(name, policies[one]["spec"]["podSelector"].get("matchLabels", {}))) for one in policies}
    assert chooses.pop("paramsync-nothing") == OWNERS[name]
    assert set.union(*chooses.values()) == OWNERS[name]
    for policy, owners in chooses.items():
        for owner in owners:
            ports = {port["name"] for port in pods(variant(name))[owner]["containers"][0].get("ports", ())}
            for rule in policies[policy]["spec"].get("ingress", ()):
                assert {port["port"] for port in rule["ports"]} <= ports


def lets_through(documents: list[Document], direction: str, pod: Document, other: Document, port: str | int) -> bool:
    """Whether the policies of the pod with labels `pod` allow ingress from, or egress to, one of its namespace."""
    policies = [
        one["spec"]
        for one in documents
        if one["kind"] == "NetworkPolicy"
        and direction.capitalize() in one["spec"]["policyTypes"]
        and one["spec"]["podSelector"].get("matchLabels", {}).items() <= pod.items()
    ]
    rules = [rule for one in policies for rule in one.get(direction, ())]
    side = {"ingress": "from", "egress": "to"}[direction]
    return not policies or any(
        port in [allowed["port"] for allowed in rule["ports"]]
        and any(
            peer["podSelector"]["matchLabels"].items() <= other.items()
            for peer in rule.get(side, [{"podSelector": {"matchLabels": {}}}])
            if "namespaceSelector" not in peer
        )
        for rule in rules
    )


def test_an_operator_reaches_every_control_port_and_the_bucket() -> None:
    documents, operator = variant("volume"), {"paramsync-operator": "true"}
    servers = [
        one["spec"]["template"]["metadata"]["labels"] for one in documents if one["kind"] in ("Deployment", "Job")
    ]
    assert len(servers) == 2
    for server in servers:
        assert lets_through(documents, "egress", operator, server, "control")
        assert lets_through(documents, "ingress", server, operator, "control")
    assert lets_through(documents, "egress", operator, {}, 443)


@pytest.mark.parametrize("name", OWNERS)
def test_servers_reach_each_other_only_with_the_component_of_peers(name: str, tmp_path: Path) -> None:
    for documents, reached in ((variant(name), False), (overlaid(name, "peers", tmp_path), True)):
        [server] = [one["spec"]["template"] for one in documents if called(one) == "Deployment-paramsync-inferencer"]
        labels = server["metadata"]["labels"]
        for direction in ("ingress", "egress"):
            assert lets_through(documents, direction, labels, labels, "control") is reached
        given = flags.parser().parse_args(words(server["spec"]["containers"][0], documents)[3:])
        assert (getattr(given, "peers", None) is not None) is reached
    for document in documents:
        if document["kind"] not in OTHERS:
            kubernetes_validate.validate(document, RELEASE, strict=True)


def test_metrics_come_by_services_whose_names_alerts_know() -> None:
    services, jobs = of("volume", "Service").values(), set()
    for monitor in of("monitoring", "ServiceMonitor").values():
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
    script, made = KUBERNETES / "monitoring" / "alerts.py", KUBERNETES / "monitoring" / "alerts.yaml"
    done = subprocess.run([sys.executable, script], capture_output=True, check=True, timeout=60)
    assert made.read_bytes() == done.stdout
    alerts = yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yml").read_text())
    assert of("monitoring", "PrometheusRule")["paramsync"]["spec"] == alerts


@pytest.mark.parametrize("name", VARIANTS)
def test_metrics_that_manifests_name_are_in_the_reference(name: str) -> None:
    reference = set(re.findall(r"`(paramsync_\w+)`", (ROOT / "docs" / "reference.md").read_text()))
    named = set(re.findall(r"\b(paramsync_\w+?)(?:_bucket(?=\{))?\b(?![-/])", yaml.safe_dump(variant(name))))
    assert named <= reference
    assert bool(named) is (name != "kserve")


# Pods -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "owner", "pod"), ALL_PODS, ids=[f"{name}-{owner}" for name, owner, _ in ALL_PODS])
def test_pods_are_confined_and_what_they_mount_is_there(name: str, owner: str, pod: Document) -> None:
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = {mount["name"] for one in containers(pod) for mount in one["volumeMounts"]}
    assert mounted == volumes.keys()
    if name != "kserve":  # which has its own accounts
        assert pod["automountServiceAccountToken"] is False
        assert owner == "paramsync-trainer" or pod["serviceAccountName"] in of(name, "ServiceAccount")
    for one in containers(pod):
        confined = {**pod["securityContext"], **one["securityContext"]}
        assert confined["seccompProfile"] == {"type": "RuntimeDefault"}
        if one["name"] == "directory":  # it gives a directory of the node to the user
            assert (confined["runAsUser"], confined["capabilities"]["add"]) == (0, ["CHOWN", "FOWNER"])
        else:
            assert (confined["runAsNonRoot"], confined["runAsUser"]) == (True, 10001)
            assert "add" not in confined["capabilities"]
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["readOnlyRootFilesystem"] is True
        assert confined["capabilities"]["drop"] == ["ALL"]
        assert "memory" in one["resources"]["limits"]
        assert {"cpu", "memory"} <= one["resources"]["requests"].keys()
    for one in pod["containers"]:
        assert "readinessProbe" in one
        assert one["name"] == "mirror" or {"startupProbe", "livenessProbe"} <= one.keys()
    for one in pod.get("initContainers", ()):
        assert one["name"] == "directory" or (one["restartPolicy"], "startupProbe" in one) == ("Always", True)


@pytest.mark.parametrize("name", OWNERS)
def test_volumes_are_what_the_namespace_allows(name: str) -> None:
    allowed = {"emptyDir", "secret", "persistentVolumeClaim"}
    if name == "node":
        allowed.add("hostPath")
    assert of(name, "Namespace")["paramsync"]["metadata"]["labels"][POD_SECURITY] == (
        "privileged" if name == "node" else "restricted"
    )
    claims = of(name, "PersistentVolumeClaim")
    page, used = (ROOT / "docs" / "kubernetes.md").read_text(), set()
    for pod in pods(variant(name)).values():
        for volume in pod["volumes"]:
            [kind] = volume.keys() - {"name"}
            assert kind in allowed
            if kind == "persistentVolumeClaim":
                used.add(volume[kind]["claimName"])
            if kind == "secret":  # of the group that fsGroup names: a program refuses more
                assert volume[kind]["defaultMode"] == 0o440
                assert f"secret generic {volume[kind]['secretName']} --from-file=tokens=" in page
    assert used == claims.keys()


@pytest.mark.parametrize(
    ("name", "directory"), [("base", "/store"), ("sidecar", "/store"), ("kserve", "/mnt/models")], ids=str
)
def test_a_store_in_memory_is_written_by_its_mirror_alone(name: str, directory: str) -> None:
    *_, (_, _, pod) = [(variant, owner, pod) for variant, owner, pod in ALL_PODS if variant == name]
    mounts = [
        (one["name"], mount["name"], mount.get("readOnly", False))
        for one in containers(pod)
        for mount in one["volumeMounts"]
        if mount["mountPath"] == directory
    ]
    [volume] = {volume for _, volume, _ in mounts}
    [found] = [one for one in pod["volumes"] if one["name"] == volume]
    assert found["emptyDir"]["medium"] == "Memory"
    assert "sizeLimit" in found["emptyDir"]
    assert [read_only for _, _, read_only in mounts] == ([False] if name == "base" else [False, True])


def test_the_mirror_of_a_node_writes_where_its_pods_read() -> None:
    of_node = pods(variant("node"))
    [mirror], [server] = (of_node[f"paramsync-{name}"]["containers"] for name in ("mirror", "inferencer"))
    [host] = [one for one in of_node["paramsync-mirror"]["volumes"] if "hostPath" in one]
    [store] = [one for one in of_node["paramsync-inferencer"]["volumes"] if "hostPath" in one]
    [mounted] = [one["mountPath"] for one in mirror["volumeMounts"] if one["name"] == host["name"]]
    [read] = [one for one in server["volumeMounts"] if one["name"] == store["name"]]
    written = words(mirror, variant("node"))[3]
    assert written.replace(mounted, host["hostPath"]["path"], 1) == store["hostPath"]["path"]
    assert read["readOnly"] is True
    assert f"--model=digits={read['mountPath']}" in words(server, variant("node"))


@pytest.mark.parametrize(("name", "program"), PROGRAMS)
def test_programs_take_the_arguments_that_they_are_given(name: str, program: Document) -> None:
    command = words(program, variant(name))
    assert not [word for word in command if "$(" in word or "{{" in word]
    if command[:2] == ["paramsync", "mirror"]:
        given: Any = arguments.parser().parse_args(command[1:])
        assert given.source.startswith("s3://")
        assert given.target.startswith("/")
    elif command[:3] == ["python3", "-m", "inferencer"]:
        given = flags.parser().parse_args(command[3:])
        [(model, store)] = given.model
        assert (model, str(store)[:4]) in {("digits", "s3:/"), ("digits", "/sto"), ("digits", "/mnt")}
    elif command[:3] == ["python3", "-m", "trainer"]:
        at = command.index("--token-file")  # it is not here to be read
        settings.parse([*command[3:at], *command[at + 2 :]])
    else:
        assert program["name"] == "directory"


@pytest.mark.parametrize(("name", "program"), PROGRAMS)
def test_probes_ask_ports_that_programs_have(name: str, program: Document) -> None:
    command = words(program, variant(name))
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = program.get(kind, {})
        if "httpGet" in probe:
            assert probe["httpGet"]["path"] in ("/healthz", "/v2/health/live")
            port = probe["httpGet"]["port"]
            assert port == "http" or f"--rest-port={port}" in command
        if "exec" in probe:
            assert probe["exec"]["command"] == [
                "test",
                "-s",
                f"{command[-2] if name != 'kserve' else '/mnt/models'}/checkpoint",
            ]


@pytest.mark.parametrize(("name", "program"), [("base", "inferencer"), ("kserve", "kserve-container")])
def test_a_pod_has_time_to_drain(name: str, program: str) -> None:
    *_, pod = [pod for variant, _, pod in ALL_PODS if variant == name]
    [_, seconds] = container(pod, program)["lifecycle"]["preStop"]["exec"]["command"]
    page = (ROOT / "docs" / "deploy.md").read_text()
    [drain] = re.findall(r"calls under way have (\d+) seconds in all", page)
    assert int(seconds) + int(drain) < pod["terminationGracePeriodSeconds"]


# Canary and KServe ----------------------------------------------------------------------------------------------------


def test_routes_give_shares_to_services_that_are_there() -> None:
    services = of("canary", "Service")
    for kind, port in (("HTTPRoute", "http"), ("GRPCRoute", "grpc")):
        [rule] = of("canary", kind)["paramsync"]["spec"]["rules"]
        assert sum(backend["weight"] for backend in rule["backendRefs"]) == 100
        assert [backend["name"] for backend in rule["backendRefs"]] == [
            "paramsync-inferencer",
            "paramsync-inferencer-canary",
        ]
        for backend in rule["backendRefs"]:
            ports = {one["name"]: one["port"] for one in services[backend["name"]]["spec"]["ports"]}
            assert backend["port"] == ports[port]


def test_what_is_on_trial_comes_from_another_address() -> None:
    addresses = {
        owner: words(container(pod, "inferencer"), variant("canary"))[3]
        for owner, pod in pods(variant("canary")).items()
    }
    assert addresses == {
        "paramsync-inferencer": "--model=digits=s3://bucket/models/digits",
        "paramsync-inferencer-canary": "--model=digits=s3://bucket/models/digits-trial",
    }


def series(job: str, code: str, each_minute: int) -> Document:
    name = f'paramsync_requests_total{{job="{job}",model="digits",code="{code}"}}'
    return {"series": name, "values": f"0+{each_minute}x10"}


def waited(job: str, slow: int) -> list[Document]:
    name = f'paramsync_request_duration_seconds_bucket{{job="{job}",model="digits"'
    counts = {"0.01": 100 - slow, "0.1": 100, "+Inf": 100}
    return [{"series": f'{name},le="{le}"}}', "values": f"0+{count}x10"} for le, count in counts.items()]


STABLE, CANARY = "paramsync-inferencer", "paramsync-inferencer-canary"


@pytest.mark.parametrize(
    ("given", "failures", "slower"),
    [
        pytest.param([series(STABLE, "OK", 1000), series(CANARY, "OK", 50)], 0.0, None, id="neither fails"),
        pytest.param(
            [series(STABLE, "OK", 900), series(STABLE, "INTERNAL", 100), series(CANARY, "OK", 50)],
            -0.11,
            None,
            id="stable fails",
        ),
        pytest.param([series(STABLE, "OK", 1000), series(CANARY, "INTERNAL", 50)], 1.0, None, id="the trial fails"),
        pytest.param([series(STABLE, "OK", 1000)], None, None, id="the trial is asked nothing"),
        pytest.param([*waited(STABLE, 0), *waited(CANARY, 0)], None, 1.0, id="as fast"),
        pytest.param([*waited(STABLE, 0), *waited(CANARY, 50)], None, 9.9192, id="slower"),
    ],
)
def test_the_analysis_compares_the_trial_with_what_is_stable(
    given: list[Document], failures: float | None, slower: float | None
) -> None:
    metrics = of("canary", "AnalysisTemplate")["paramsync-canary"]["spec"]["metrics"]
    tests = []
    for metric, expected in zip(metrics, (failures, slower), strict=True):
        query = metric["provider"]["prometheus"]["query"].replace("{{args.model}}", "digits")
        assert "{{" not in query
        samples = [] if expected is None else [{"labels": "{}", "value": expected}]
        tests.append({"expr": f"round({query}, 0.0001)", "eval_time": "10m", "exp_samples": samples})
    cases = {
        "rule_files": [],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": tests}],
    }
    assert "SUCCESS" in promtool("test", "rules", "/dev/stdin", given=yaml.safe_dump(cases).encode())


def test_failures_are_what_the_alert_counts() -> None:
    assert f'code=~"{FAILURES}"' in (ROOT / "deploy" / "monitoring" / "alerts.yml").read_text()
    [failures, _] = of("canary", "AnalysisTemplate")["paramsync-canary"]["spec"]["metrics"]
    assert failures["provider"]["prometheus"]["query"].count(f'code=~"{FAILURES}"') == 2


def test_the_example_of_kserve_gets_the_runtime_and_its_container() -> None:
    example = yaml.safe_load((KUBERNETES / "kserve" / "digits.yaml").read_text())["spec"]["predictor"]
    runtime = of("kserve", "ClusterServingRuntime")["paramsync"]["spec"]
    formats = [one["name"] for one in runtime["supportedModelFormats"] if one["autoSelect"]]
    assert example["model"]["modelFormat"]["name"] in formats
    assert example["model"]["protocolVersion"] in runtime["protocolVersions"]
    storage = of("kserve", "ClusterStorageContainer")[example["storageContainerName"]]["spec"]
    prefixes = [one["prefix"] for one in storage["supportedUriFormats"]]
    assert example["model"]["storageUri"].startswith(tuple(prefixes))


def test_the_service_of_kserve_has_a_port_for_each_protocol() -> None:
    *_, (_, _, pod) = ALL_PODS
    server = container(pod, "kserve-container")
    given = flags.parser().parse_args(server["args"])
    first, second = server["ports"]  # KServe makes the first the Service's port 80
    assert (first["name"], first["containerPort"]) == ("http1", given.rest_port)
    assert (second["name"], second["containerPort"]) == ("h2c", given.port)
