"""MLServer with a runtime of its user's, in MLServer's own process: for so small a network a worker costs more.

A new version is a call of `/v2/repository/models/bench/load`, which loads it beside the one that serves.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import threading
import urllib.request
from pathlib import Path

from mlserver import MLServer, ModelSettings, Settings
from network import arguments, follow, newest

_NAME = "bench"


def _load_again(port: int) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v2/repository/models/{_NAME}/load", b"", method="POST")
    urllib.request.urlopen(request).close()


async def _serve() -> None:
    told = arguments()
    with tempfile.TemporaryDirectory() as repository:
        model = {
            "name": _NAME,
            "implementation": "mlserver_runtime.Runtime",
            "parameters": {"extra": {"kind": told.kind, "folder": str(told.folder)}},
        }
        settings = Path(repository, _NAME, "model-settings.json")
        settings.parent.mkdir()
        settings.write_text(json.dumps(model))
        server = MLServer(
            Settings(
                host="127.0.0.1", grpc_port=told.port, http_port=told.port + 1, metrics_endpoint=None,
                parallel_workers=0, model_repository_root=repository,
            )
        )  # fmt: skip
        logging.disable(logging.INFO)
        follower = (told.folder, newest(told.folder), lambda path: _load_again(told.port + 1))
        threading.Thread(target=follow, args=follower, daemon=True).start()
        await server.start([ModelSettings.parse_file(str(settings))])


if __name__ == "__main__":
    asyncio.run(_serve())
