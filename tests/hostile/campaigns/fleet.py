"""Clients that ask a fleet behind one address, each of which notes an older version after a newer one.

`python -m tests.hostile.campaigns.fleet http|grpc ADDRESS CLIENTS REQUEST`. Each client has its own connection, which
it uses again and again. The process prints how many answers it has, and ends on SIGTERM with one line of JSON.
"""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import grpc

from paramsync.v1 import serving_pb2

_METHOD = "/tensorflow.serving.PredictionService/Predict"
_BODY = b'{"inputs": {"x": [[1.0, 1.0]]}}'
_EACH = 100  # answers between two lines

Ask = Callable[[], "tuple[int, list[float]]"]
"""Asks once, and returns the version of the answer and its values."""


def over_http(address: str) -> Ask:
    connection = http.client.HTTPConnection(address, timeout=60)

    def ask() -> tuple[int, list[float]]:
        connection.request("POST", "/v1/models/m:predict", _BODY, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise OSError(f"{answer.status} {content[:100]!r}")
        return int(answer.headers["Paramsync-Version"]), json.loads(content)["outputs"]["seen"]

    return ask


def over_grpc(address: str, request: bytes) -> Ask:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    call = grpc.insecure_channel(address, options).unary_unary(_METHOD, bytes, bytes)

    def ask() -> tuple[int, list[float]]:
        answer = serving_pb2.PredictResponse.FromString(call(request, timeout=60.0, wait_for_ready=True))
        return answer.model_spec.version.value, list(answer.outputs["seen"].float_val)

    return ask


def ask_on(clients: Sequence[Ask], over: threading.Event) -> dict[str, object]:
    """Ask by each client in turn."""
    last = [0] * len(clients)
    seen, failed = Counter[str](), Counter[str]()
    for client, ask in itertools.cycle(enumerate(clients)):
        if over.is_set():
            break
        try:
            version, values = ask()
        except (grpc.RpcError, OSError, http.client.HTTPException) as error:
            failed[repr(error)[:300]] += 1
            continue
        seen["answered"] += 1
        seen["backwards"] += version < last[client]
        seen["mixed"] += {*values} != {float(version)}
        last[client] = version
        if seen["answered"] % _EACH == 0:
            sys.stdout.write(f"{seen['answered']}\n")
            sys.stdout.flush()
    return {"answered": seen["answered"], "backwards": seen["backwards"], "mixed": seen["mixed"], "failed": failed}


def main(kind: str, address: str, clients: str, request: str) -> None:
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    connect = over_http if kind == "http" else lambda where: over_grpc(where, bytes.fromhex(request))
    sys.stdout.write(json.dumps(ask_on([connect(address) for _ in range(int(clients))], over)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
