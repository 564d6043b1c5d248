"""A trainer and three inferencers that share a bucket of SeaweedFS and nothing else, on one machine: `make fleet`.

A live view says who serves what, until Ctrl-C or for `--seconds` once all have started.
"""

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event

from paramsync.cli.programs import Child, end_all
from paramsync.errors import CallError
from paramsync.rpc.addresses import HOST, free_port
from paramsync.rpc.client import Inferencer

ADDRESS = "s3://paramsync/models/digits"
INFERENCERS, VERSIONS = 3, 3  # each inferencer must serve as many different versions


def start_bucket(folder: Path, stack: ExitStack) -> None:
    """Start SeaweedFS, and wait until it answers. The programs find it by their environment."""
    ports = {name: free_port(HOST) for name in ("master", "volume", "filer", "s3")}
    endpoint = f"http://{HOST}:{ports['s3']}"
    os.environ.update(AWS_ENDPOINT_URL=endpoint, AWS_REGION="us-east-1", AWS_ALLOW_HTTP="true")  # noqa: TID251
    os.environ.update(AWS_ACCESS_KEY_ID="fleet", AWS_SECRET_ACCESS_KEY=os.urandom(16).hex())  # noqa: TID251
    flags = [flag for name in ports for flag in (f"-{name}.port={ports[name]}", f"-{name}.port.grpc={free_port(HOST)}")]
    flags += [f"-dir={folder}", f"-ip={HOST}", f"-ip.bind={HOST}", "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    flags += ["-volume.max=100", "-master.volumeSizeLimitMB=64"]
    command, log = [str(Path(sys.executable).with_name("weed")), "server", *flags], folder / "bucket.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, start_new_session=True)
    stack.enter_context(server)
    stack.callback(server.kill)
    while server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{endpoint}/healthz"):
            return
        Event().wait(0.1)
    raise SystemExit(log.read_text(errors="replace"))


def run(folder: Path, children: list[Child], seconds: float) -> bool:
    """Returns whether each inferencer has served enough versions."""
    free = ["--port", "0", "--rest-port", "0", "--control-port", "0", "--workers", "1"]
    for name in map(str, range(INFERENCERS)):
        own = ["--cache", str(folder / f"cache-{name}"), "--state", str(folder / f"state-{name}"), *free]
        children.append(Child("inferencer", ["--model", f"digits={ADDRESS}", *own], log=folder / f"{name}.log"))
    own = ["--store", ADDRESS, "--state", str(folder / "training"), "--control-port", "0"]
    children.append(Child("trainer", own, log=folder / "trainer.log"))
    while not all(child.addresses() for child in children) and not any(child.ended for child in children):
        Event().wait(0.1)
    if any(child.ended for child in children):
        return False  # `end_all` says why
    *servers, trainer = [child.addresses()["control"] for child in children]
    view = ["status", "--watch", "--trainer", trainer, *(f"--server={server}" for server in servers)]
    with ExitStack() as stack:
        shown = stack.enter_context(subprocess.Popen([sys.executable, "-m", "paramsync.cli", *view]))
        stack.callback(shown.terminate)
        served = {stack.enter_context(Inferencer(server)): set[int]() for server in servers}
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at and shown.poll() is None and not any(child.ended for child in children):
            for inferencer, versions in served.items():
                with suppress(CallError):
                    versions.update(model.serving.number for model in inferencer.status() if model.HasField("serving"))
            Event().wait(0.1)
    return all(len(versions) >= VERSIONS for versions in served.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=math.inf)
    seconds, children, served_enough = parser.parse_args().seconds, list[Child](), True
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="paramsync-fleet-") as place, ExitStack() as last:
        try:
            with suppress(KeyboardInterrupt):
                start_bucket(Path(place), last)
                served_enough = run(Path(place), children, seconds)
        finally:
            faults = end_all(children, seconds=90.0)  # the last version is copied meanwhile
    if not served_enough:
        faults.append(f"expected at least {VERSIONS} versions served by each inferencer")
    sys.exit("\n".join(faults) or 0)
