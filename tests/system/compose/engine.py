"""A Docker engine for the tests: the one that is reachable, or one of our own that leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.system.compose.commands import CommandError, run, scratch, wait_for

DEFAULT_BRIDGE = Path("/sys/class/net/docker0")
BRIDGE = "psync-"  # how the names of bridges begin that containers of the tests are on


class NoEngineError(Exception):
    """No engine can be had here; the text says why."""


@contextmanager
def engine() -> Iterator[Mapping[str, str]]:
    """The environment in which `docker` and compose reach an engine. NoEngineError when there is none to be had."""
    if shutil.which("docker") is None:
        raise NoEngineError("docker is not installed")
    environment = dict(os.environ)
    if _answer(environment):
        yield environment
        return
    if os.geteuid() != 0:
        raise NoEngineError("no Docker engine answers, and only root can start one")
    if shutil.which("dockerd") is None:
        raise NoEngineError("no Docker engine answers, and dockerd is not installed")
    with scratch("engine") as home, _let_through(), _own(home) as environment:
        yield environment


@contextmanager
def _let_through() -> Iterator[None]:
    """Containers on one bridge of the tests reach each other, also where the machine forwards nothing.

    An engine that may touch the packet filter leaves such a policy behind, and lets through what is on its own bridges.
    """
    rule = ("FORWARD", "-i", f"{BRIDGE}+", "-o", f"{BRIDGE}+", "-j", "ACCEPT")
    if shutil.which("iptables") is None:
        yield
        return
    run("iptables", "--wait", "-I", *rule)
    try:
        yield
    finally:
        run("iptables", "--wait", "-D", *rule)


@contextmanager
def _own(home: Path) -> Iterator[dict[str, str]]:
    socket = f"unix://{home}/docker.sock"
    settings: dict[str, object] = {
        "hosts": [socket],
        "data-root": f"{home}/data",
        "exec-root": f"{home}/run",
        "pidfile": f"{home}/pid",
        # Nothing of the machine's network is touched but for the rule above: no forwarding, no default bridge. Ports
        # are published by the engine's own proxy, and builds use the machine's network.
        "iptables": False,
        "ip-forward": False,
        "ip-masq": False,
    }
    if not DEFAULT_BRIDGE.exists():  # one that is there belongs to another engine, and "none" would remove it
        settings["bridge"] = "none"
    (home / "daemon.json").write_text(json.dumps(settings))
    environment = {name: value for name, value in os.environ.items() if name != "DOCKER_CONTEXT"}
    environment["DOCKER_HOST"] = socket
    with (home / "log").open("w") as output:
        daemon = subprocess.Popen(
            # Should the tests be killed, the engine ends its containers and itself.
            ["setpriv", "--pdeathsig", "TERM", "dockerd", "--config-file", f"{home}/daemon.json"],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the tests, which take the stack down first
        )
    try:
        ended_or_ready = wait_for(
            "engine answers", lambda: _answer(environment) or (daemon.poll() is not None and "ended"), timeout=60
        )
        if ended_or_ready == "ended":
            said = (home / "log").read_text().splitlines() or ["nothing said"]
            raise NoEngineError(f"dockerd does not run here: {said[-1]}")
        yield environment
    finally:
        daemon.terminate()
        try:
            daemon.wait(timeout=60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _answer(environment: Mapping[str, str]) -> str | None:
    try:
        return run("docker", "version", "--format", "{{.Server.Version}}", env=environment, timeout=10)
    except (CommandError, subprocess.TimeoutExpired):
        return None
