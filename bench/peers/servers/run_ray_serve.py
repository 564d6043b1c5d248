"""Ray Serve behind its gRPC proxy, with a replica for each processor.

A new version is a `serve.run` with another `user_config`, which replicas reconfigure themselves by, without a restart.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
import numpy as np
import ray
from google.protobuf.wrappers_pb2 import BytesValue
from network import KINDS, arguments, follow, newest
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions

_SERVICE = "bench.Network"


def add_servicer(servicer, server):
    """What protoc would write for a service with one call, of bytes and to bytes."""
    handler = grpc.unary_unary_rpc_method_handler(
        servicer.Predict, request_deserializer=BytesValue.FromString, response_serializer=BytesValue.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Predict": handler}),))


class Network:
    """One replica."""

    def __init__(self, kind):
        self._kind = KINDS[kind]

    def reconfigure(self, config):
        """The file in the configuration is the version."""
        self._network = self._kind(Path(config["path"]))

    def Predict(self, request):
        network = self._network
        x = np.frombuffer(request.value, network.dtype).reshape(-1, network.width)
        return BytesValue(value=network(x).astype("f4").tobytes())


def main() -> None:
    told = arguments()
    here = str(Path(__file__).parent)
    sys.path.append(here)
    environment = {"PYTHONPATH": here, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ray.init(include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=told.port + 1),
        grpc_options=gRPCOptions(port=told.port, grpc_servicer_functions=["run_ray_serve.add_servicer"]),
    )
    deployment = serve.deployment(
        Network,
        name="network",
        num_replicas=told.workers,
        max_ongoing_requests=100,
        ray_actor_options={"num_cpus": 0},
        logging_config={"enable_access_log": False},
    )

    def run(path: Path) -> None:
        application = deployment.options(user_config={"path": str(path)}).bind(told.kind)
        serve.run(application, name="bench", route_prefix="/")

    first = newest(told.folder)
    run(first)
    follow(told.folder, first, run)


if __name__ == "__main__":
    main()
