"""Prometheus' own programs, from this machine or Debian's package, and the queries of the dashboard."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.programs import ROOT

DEPLOYED = ROOT / "deploy" / "monitoring"
_HOME = Path(sys.prefix) / "prometheus"
_SECONDS = 300  # limit for fetching 20 MB from a slow mirror


def program(name: str) -> str:
    """Return the path of `promtool` or `prometheus`, from this machine or else from Debian's package.

    The package is unpacked next to the tests' Python environment. Fails if there is no package either.
    """
    if found := shutil.which(name):
        return found
    unpacked = _HOME / "usr" / "bin" / name
    _HOME.mkdir(exist_ok=True)
    with (_HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one of the tests that run at the same time fetches the package
        if not unpacked.exists():
            _fetch()
    return str(unpacked)


def promtool(*arguments: str | Path, given: bytes = b"") -> str:
    """Run promtool with `given` as its input, and return its output. Fails if promtool finds an error."""
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def queries(*, rate_interval: str, of_buckets: bool = False) -> list[str]:
    """Return the dashboard's queries, about buckets or all others, and a query whether both scraped programs are up."""
    panels = json.loads((DEPLOYED / "dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(asked) > 30
    asked = [query for query in asked if bool(re.search(r"paramsync_(trainer_)?bucket_", query)) is of_buckets]
    asked += ['up{job="paramsync-inferencer"} == 1', 'up{job="paramsync-trainer"} == 1']
    return [
        re.sub(r"\$(inferencer|model|trainer)\b", ".*", query).replace("$__rate_interval", rate_interval)
        for query in dict.fromkeys(asked)
    ]


def _fetch() -> None:
    """Download and unpack the package. Installing it would also install its dependencies and start a service."""
    with tempfile.TemporaryDirectory(dir=_HOME) as folder:
        download = ["apt-get", "-qq", "download", "prometheus"]
        for command in (download, ["apt-get", "-qq", "update"], download):
            try:
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, check=False, timeout=_SECONDS
                )
            except FileNotFoundError as error:
                raise AssertionError("needs promtool and prometheus; install Prometheus 2.42 or newer") from error
            packages = list(Path(folder).glob("*.deb"))
            if packages:
                break
        else:
            raise AssertionError(f"needs promtool and prometheus: apt-get install prometheus\n{done.stderr}")
        subprocess.run(["dpkg-deb", "--extract", packages[0], folder], check=True, timeout=_SECONDS)
        shutil.rmtree(_HOME / "usr", ignore_errors=True)
        (Path(folder) / "usr").rename(_HOME / "usr")
