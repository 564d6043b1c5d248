"""Envoy, a real gateway before several servers. A test tells it the servers, as a cluster would."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.programs import eventually

_TYPES = "type.googleapis.com/envoy"
_FILTERS = "envoy.extensions.filters"


def _address(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _listener(name: str, filter_name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    filters = [{"name": name, "typed_config": {"@type": f"{_TYPES}.{filter_name.removeprefix('envoy.')}", **config}}]
    return {"name": name, "address": _address("127.0.0.1:0"), "filter_chains": [{"filters": filters}]}


def by_connections(name: str) -> dict[str, Any]:
    """A listener that gives each connection to a server, as a Service of Kubernetes does."""
    return _listener(name, f"{_FILTERS}.network.tcp_proxy.v3.TcpProxy", {"stat_prefix": name, "cluster": name})


def by_requests(name: str) -> dict[str, Any]:
    """A listener that gives each request to a server, as a gateway does."""
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": name, "timeout": "0s"}}]
    router = {"@type": f"{_TYPES}.extensions.filters.http.router.v3.Router"}
    config = {
        "stat_prefix": name,
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
        "route_config": {"virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}]},
    }
    manager = f"{_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager"
    return _listener(name, manager, config)


def cluster(name: str, *, h2: bool) -> dict[str, Any]:
    """Servers that `Envoy.route` names."""
    source = {"path_config_source": {"path": f"./{name}.json"}}
    found: dict[str, Any] = {"name": name, "type": "EDS", "eds_cluster_config": {"eds_config": source}}
    if h2:
        kind = "extensions.upstreams.http.v3.HttpProtocolOptions"
        options = {"@type": f"{_TYPES}.{kind}", "explicit_http_config": {"http2_protocol_options": {}}}
        found["typed_extension_protocol_options"] = {f"envoy.{kind}": options}
    return found


class Envoy:
    """One Envoy with these static resources."""

    def __init__(self, folder: Path, resources: Mapping[str, Any]) -> None:
        envoy = shutil.which("envoy", path=str(Path(sys.executable).parent))
        assert envoy is not None, "Envoy is not installed: make gateway"
        folder.mkdir()
        self._folder = folder
        self.route({one["name"]: () for one in resources["clusters"] if one["type"] == "EDS"}, wait=False)
        bootstrap = {
            "node": {"id": "test", "cluster": "test"},
            "admin": {"address": _address("127.0.0.1:0")},
            "static_resources": resources,
        }
        (folder / "bootstrap.json").write_text(json.dumps(bootstrap))
        command = [envoy, "--config-path", "bootstrap.json", "--admin-address-path", "admin", "--concurrency", "1"]
        command += ["--disable-hot-restart", "--log-level", "warning"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        eventually(self._is_live, self._log)

    def __enter__(self) -> Envoy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def address(self, listener: str) -> str:
        """Return the address at which a listener listens."""
        found = {one["name"]: one for one in self._ask("listeners")["listener_statuses"]}
        place = found[listener]["local_address"]["socket_address"]
        return f"{place['address']}:{place['port_value']}"

    def route(self, endpoints: Mapping[str, Sequence[str]], *, wait: bool = True) -> None:
        """Give clusters these endpoints, and wait until Envoy has them."""
        for name, addresses in endpoints.items():
            listed = [{"endpoint": {"address": _address(address)}} for address in addresses]
            resource = {
                "@type": f"{_TYPES}.config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": name,
                "endpoints": [{"lb_endpoints": listed}],
            }
            aside = self._folder / "aside"
            aside.write_text(json.dumps({"resources": [resource]}))
            aside.rename(self._folder / f"{name}.json")  # Envoy looks at a file that is moved
        if wait:
            eventually(
                lambda: self._endpoints(endpoints) == {name: {*one} for name, one in endpoints.items()}, self._log
            )

    def _endpoints(self, names: Mapping[str, object]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for cluster in self._ask("clusters")["cluster_statuses"]:
            places = [host["address"]["socket_address"] for host in cluster.get("host_statuses", ())]
            found[cluster["name"]] = {f"{place['address']}:{place['port_value']}" for place in places}
        return {name: found[name] for name in names}

    def _is_live(self) -> bool:
        assert self._process.poll() is None, self._log()
        try:
            return bool(self._ask("listeners")["listener_statuses"])
        except (OSError, ValueError, KeyError):
            return False

    def _ask(self, path: str) -> Any:
        admin = (self._folder / "admin").read_text()
        with urllib.request.urlopen(f"http://{admin}/{path}?format=json", timeout=60) as answer:
            return json.load(answer)

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")
