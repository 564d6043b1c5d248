"""Runs a pod of the manifests as processes of this machine, which share only the pod's volumes, in memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from paramsync.remote.child import MirrorChild
from tests.support.inferencers import Process
from tests.support.kubectl import Document, container, containers, variant, words
from tests.support.programs import ROOT, eventually
from tests.support.published import Publisher

SERVERS = ("inferencer", "kserve-container")


class Pod:
    """A pod. Its methods do what a kubelet would do."""

    def __init__(self, spec: Document, name: str, folder: Path, bucket: Mapping[str, str], **own: str) -> None:
        """`own` are values that an overlay puts into the pod's ConfigMap.

        Containers that may write the store get the variables `bucket`, by which programs find the bucket.
        """
        self._spec, self._documents, self._folder, self._own = spec, variant(name), folder, own
        self._bucket = bucket
        for volume in spec["volumes"]:
            (folder / volume["name"]).mkdir(parents=True)
            if "secret" in volume:
                tokens = folder / volume["name"] / "tokens"
                tokens.touch(0o600)
                tokens.write_text("00112233445566778899aabbccddeeff")
        self.mirror: subprocess.Popen[bytes] | None = None

    def start_server(self, *more: str) -> Process:
        """Start the server's container. `more` arguments choose ports, because the pod shares this machine's ports."""
        [name] = [one["name"] for one in containers(self._spec) if one["name"] in SERVERS]
        _, _, program, *arguments = self._command(name)
        assert program == "inferencer"
        return Process(*arguments, "--rest-port", "0", *more, environment=self._environment(name))

    def start_mirror(self) -> subprocess.Popen[bytes]:
        """Start the sidecar."""
        [name] = [one["name"] for one in containers(self._spec) if one["name"] not in SERVERS]
        paramsync, *arguments = self._command(name)
        assert paramsync == "paramsync"
        command = [sys.executable, "-m", "paramsync.cli", *arguments]
        with (self._folder / "mirror.log").open("ab") as log:
            self.mirror = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=self._environment(name))
        return self.mirror

    def has_started(self) -> bool:
        """Ask the startup probe of the sidecar."""
        [sidecar] = [one for one in containers(self._spec) if one["name"] not in SERVERS]
        probe = sidecar["startupProbe"]["exec"]["command"]
        return subprocess.run([self._here(word, sidecar) for word in probe], check=False).returncode == 0

    def is_ready(self, server: Process) -> bool:
        """Ask the readiness probe of the server."""
        [one] = [one for one in containers(self._spec) if one["name"] in SERVERS]
        return server.http("GET", one["readinessProbe"]["httpGet"]["path"])[0] == 200

    def log(self) -> str:
        return (self._folder / "mirror.log").read_text(errors="replace")

    def close(self) -> None:
        if self.mirror is not None:
            self.mirror.kill()
            self.mirror.wait()

    def _command(self, name: str) -> list[str]:
        found = container(self._spec, name)
        return [self._here(word, found) for word in words(found, self._documents, **self._own)]

    def _here(self, word: str, found: Document) -> str:
        """Replace the paths of volumes in a word of a command by their paths on this machine."""
        for mount in found["volumeMounts"]:
            place = re.escape(mount["mountPath"])
            word = re.sub(rf"(^|=){place}(?=/|$)", rf"\g<1>{self._folder / mount['name']}", word)
        return word

    def _environment(self, name: str) -> dict[str, str]:
        found = container(self._spec, name)
        clean = {word: value for word, value in os.environ.items() if not word.startswith("AWS_")}
        writes = any(
            mount["mountPath"] in ("/store", "/mnt/models") and not mount.get("readOnly")
            for mount in found["volumeMounts"]
        )
        own = {one["name"]: one["value"] for one in found.get("env", ())}
        return {**clean, **(self._bucket if writes else {}), **own}


class Trainer:
    """Publishes to a bucket from outside the pod."""

    def __init__(self, folder: Path, address: str) -> None:
        self._publisher = Publisher(folder)
        self._mirror = MirrorChild(str(folder), address)

    def publish(self, number: int, *, serve_after: float | None = None) -> None:
        """Returns once the version is in the bucket."""
        self._publisher.publish(number, serve_after=serve_after)
        eventually(lambda: (self._mirror.newest or 0) >= number, lambda: f"version {number}: {self._mirror.reason}")

    def close(self) -> None:
        self._mirror.close()
        self._publisher.close()
