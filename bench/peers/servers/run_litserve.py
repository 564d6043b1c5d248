"""LitServe: JSON by HTTP, with rows as base64, and one process that computes: more of them were slower.

LitServe knows no versions: that process follows the folder by itself, in a thread.
"""

from __future__ import annotations

import base64

import litserve
import numpy as np
from network import Following, arguments


class Network(litserve.LitAPI):
    """What computes. `decode_request` and `encode_response` are what LitServe calls."""

    def __init__(self, kind, folder, **options):
        super().__init__(**options)
        self._told = (kind, folder)

    def setup(self, device):
        self._following = Following(*self._told)

    def decode_request(self, request):
        network = self._following.network
        return np.frombuffer(base64.b64decode(request["x"]), network.dtype).reshape(-1, network.width)

    def predict(self, x):
        return self._following.network(x)

    def encode_response(self, output):
        return {"y": base64.b64encode(output.astype("f4").tobytes()).decode()}


def main() -> None:
    told = arguments()
    api = Network(told.kind, told.folder)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1",
        port=told.port,
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )


if __name__ == "__main__":
    main()
