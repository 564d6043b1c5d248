"""The stacks of the compose files under a project name and ports of their own, and what an operator does to them."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.programs import ROOT
from tests.support.prometheus import program
from tests.system.compose.commands import CommandError, run
from tests.system.compose.engine import BRIDGE

IMAGE = "paramsync-test"
TOKEN = "the-token-of-this-test"
UID = 10001  # of the image's user
PROGRAMS = ("trainer", "inferencer")
PORTS = ("PORT", "REST_PORT", "CONTROL_PORT", "TRAINER_PORT", "TRAINER_METRICS_PORT", "PROMETHEUS_PORT")
BUCKET_PORTS = (*PORTS[:4], "PORT_2", "REST_PORT_2", "CONTROL_PORT_2")


def compose_command(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """How compose is called here: version 2 where it is installed, else version 1, else not at all."""
    if shutil.which("docker"):
        with suppress(CommandError):
            run("docker", "compose", "version", env=environment)
            return ("docker", "compose")
    return ("docker-compose",) if shutil.which("docker-compose") else None


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, all different.

    From below the range that outgoing connections take theirs from: a stopped container must find its port free again.
    """
    with ExitStack() as open_sockets:
        found: list[int] = []
        for port in random.sample(range(20_000, 32_000), 200):
            with suppress(OSError):
                open_sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                break
        return found


def _ports(names: tuple[str, ...]) -> dict[str, str]:
    return {f"PARAMSYNC_{name}": str(port) for name, port in zip(names, free_ports(len(names)), strict=True)}


@dataclass(frozen=True, slots=True)
class Stack:
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    project: str
    files: tuple[str, ...]
    services: tuple[str, ...]

    @classmethod
    def plan(
        cls,
        command: tuple[str, ...],
        engine: Mapping[str, str],
        *,
        base_image: str,
        images: Mapping[str, bool],
        folder: Path,
    ) -> Stack:
        """A stack that exists nowhere yet. Where we may give a file to the user of its containers, its token is one.

        `images` is which services of the profile `monitoring` have their image here: Debian's program takes the place
        of Prometheus', and Grafana is left out without its own.
        """
        number = uuid.uuid4().hex[:8]
        environment = {
            **engine,
            **_ports(PORTS),
            "PARAMSYNC_BASE_IMAGE": base_image,
            "PARAMSYNC_TEST_BRIDGE": f"{BRIDGE}{number}",
        }
        files = ["docker-compose.yml", "tests/system/compose/override.yml"]
        if os.geteuid() == 0:
            tokens = folder / "tokens"
            tokens.touch(0o600)
            tokens.write_text(f"test:{TOKEN}\n")
            os.chown(tokens, UID, UID)
            files.insert(1, "docker-compose.secrets.yml")
            environment["PARAMSYNC_TOKEN_FILE"] = str(tokens)
        else:
            environment["PARAMSYNC_TOKEN"] = TOKEN
        if not images["prometheus"]:
            files.append("tests/system/compose/prometheus.yml")
            environment["PARAMSYNC_TEST_PROMETHEUS"] = program("prometheus")
        services = (*PROGRAMS, "prometheus", *(["grafana"] if images["grafana"] else []))
        return cls(command, environment, f"paramsync-{number}", tuple(files), services)

    def over_a_bucket(self, *, public: bool) -> Stack:
        """The stack of docker-compose.bucket.yml from the image of this stack. `public`: its server's image is here."""
        number, files = uuid.uuid4().hex[:7], ["docker-compose.bucket.yml", "tests/system/compose/bucket.yml"]
        environment = {**self.environment, **_ports(BUCKET_PORTS), "PARAMSYNC_TEST_BRIDGE": f"{BRIDGE}{number}"}
        if not public:
            files.append("tests/system/compose/weed.yml")
            environment["PARAMSYNC_TEST_WEED"] = str(Path(sys.executable).with_name("weed"))
        services = ("bucket", *PROGRAMS, "inferencer-2")
        return Stack(self.command, environment, f"paramsync-{number}", tuple(files), services)

    def by_tls(self, folder: Path) -> Stack:
        """The same stack, over which docker-compose.tls.yml is laid, with certificates that are made in this folder."""
        page = (ROOT / "docs" / "security.md").read_text()
        (commands,) = re.findall(r"```sh\n([^`]*openssl req[^`]*)```", page)
        subprocess.run(["sh", "-ec", commands], cwd=folder, check=True, capture_output=True, timeout=60)
        tls, owner = folder / "tls", ("run", "--rm", "--network", "none", "--user", "0", "--entrypoint", "chown")
        self.docker(*owner, "--volume", f"{tls}:/tls", IMAGE, str(UID), "/tls/server.key")
        environment = {**self.environment, "PARAMSYNC_TLS": str(tls)}
        return replace(self, environment=environment, files=(*self.files, "docker-compose.tls.yml"))

    def address(self, port: str) -> str:
        return f"127.0.0.1:{self.environment[port]}"

    def compose(self, *arguments: str, timeout: float = 120) -> str:
        files = (f"--file={ROOT / file}" for file in self.files)
        command = (*self.command, "-p", self.project, "--profile", "monitoring", *files)
        return run(*command, *arguments, env=self.environment, timeout=timeout)

    def docker(self, *arguments: str, timeout: float = 60) -> str:
        return run("docker", *arguments, env=self.environment, timeout=timeout)

    def start(self) -> None:
        """Compose makes containers anew whose configuration is another one."""
        self.compose("up", "-d", *self.services, timeout=300)

    @contextmanager
    def up(self) -> Iterator[None]:
        """The running stack; afterwards nothing of it is left, volumes included."""
        try:
            self.start()
            yield
        finally:
            self.compose("down", "--volumes", "--remove-orphans", timeout=180)

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows about the service's container, running or not."""
        found = self.docker("ps", "--all", "--quiet", *self._labelled(f"com.docker.compose.service={service}"))
        (container,) = json.loads(self.docker("inspect", found))
        return dict(container)

    def left_over(self) -> str:
        """Containers, volumes and networks of this project."""
        kinds = (("ps", "--all"), ("volume", "ls"), ("network", "ls"))
        return "\n".join(filter(None, (self.docker(*kind, "--quiet", *self._labelled()) for kind in kinds)))

    def kill(self, service: str) -> None:
        """SIGKILL from outside the container, as the kernel does it when memory runs out.

        `docker kill` would not do: the engine takes it for an operator's wish and does not restart the container.
        """
        pid = self.inspect(service)["State"]["Pid"]
        sender = ("run", "--rm", "--pid", "host", "--network", "none", "--user", "0", "--entrypoint", "sh", IMAGE)
        self.docker(*sender, "-c", f"kill -9 {pid}")

    def tail(self, service: str) -> str:
        try:
            return self.compose("logs", "--no-color", "--tail", "50", service)
        except (CommandError, subprocess.TimeoutExpired) as error:
            return str(error)

    def _labelled(self, *labels: str) -> tuple[str, ...]:
        wanted = (f"com.docker.compose.project={self.project}", *labels)
        return tuple(part for label in wanted for part in ("--filter", f"label={label}"))
