"""Triton's stock client for HTTP, in a process of its own, because it patches the process's socket module.

Prints its results as JSON; with a port, results of the server of tests.support.kserve.
Run as `python -m tests.support.kserve_http_client PORT`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.http as triton

from tests.support.values import VALUES

X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
NEGATED = {"signature": "negated"}


def given(name: str, array: np.ndarray[Any, Any], datatype: str, *, binary: bool = True) -> Any:
    found = triton.InferInput(name, array.shape, datatype)
    found.set_data_from_numpy(array, binary_data=binary)
    return found


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except triton.InferenceServerException as error:
        return error.status() or "", error.message()
    return "", ""


def told(result: Any) -> list[Any]:
    response = result.get_response()
    return [response.get("id", ""), response["model_version"], result.as_numpy("y").tolist()]


def answers(client: Any) -> dict[str, Any]:
    x = [given("x", X, "FP32")]
    every = client.infer("m", [given(name.lower(), array, name) for name, array in VALUES.items()])
    same = {name: every.as_numpy(name.lower()).tobytes() == array.tobytes() for name, array in VALUES.items()}
    same["BYTES"] = every.as_numpy("bytes").tolist() == VALUES["BYTES"].tolist()
    as_json = [triton.InferRequestedOutput("y", binary_data=False)]
    later = client.async_infer("m", x, request_id="b", parameters=NEGATED)
    return {
        "same": same,
        "plain": told(client.infer("m", x, request_id="a", parameters=NEGATED)),
        "json": told(client.infer("m", [given("x", X, "FP32", binary=False)], outputs=as_json, parameters=NEGATED)),
        "mixed": told(client.infer("m", x, outputs=as_json, parameters=NEGATED)),
        "named": [
            client.infer("m", x, version, outputs=[triton.InferRequestedOutput("version")], parameters=NEGATED)
            .as_numpy("version").item()
            for version in ("", "3", "stable")
        ],
        "gzip": told(client.infer("m", x, parameters=NEGATED, request_compression_algorithm="gzip")),
        "deflate": told(client.infer("m", x, parameters=NEGATED, request_compression_algorithm="deflate")),
        "gzip back": told(client.infer("m", x, parameters=NEGATED, response_compression_algorithm="gzip")),
        "later": told(later.get_result()),
    }  # fmt: skip


def described(client: Any) -> dict[str, Any]:
    return {
        "live": client.is_server_live(),
        "ready": [client.is_server_ready(), client.is_model_ready("m"), client.is_model_ready("m", "stable")],
        "not ready": [client.is_model_ready("m", "5"), client.is_model_ready("empty"), client.is_model_ready("other")],
        "server": client.get_server_metadata(),
        "model": client.get_model_metadata("m", "3"),
        "index": client.get_model_repository_index(),
        "statistics": client.get_inference_statistics("m")["model_stats"],
        "of one version": client.get_inference_statistics("m", "stable")["model_stats"],
        "of all models": client.get_inference_statistics()["model_stats"],
    }


def refusals(client: Any) -> dict[str, tuple[str, str]]:
    region = triton.InferInput("x", X.shape, "FP32")
    region.set_shared_memory("region", X.nbytes)
    x = [given("x", X, "FP32")]
    top = triton.InferRequestedOutput("y", class_count=1)
    return {
        "unknown model": refused(lambda: client.infer("other", x)),
        "no version": refused(lambda: client.infer("empty", x)),
        "no metadata": refused(lambda: client.get_model_metadata("other")),
        "no such version": refused(lambda: client.get_model_metadata("m", "99")),
        "no statistics": refused(lambda: client.get_inference_statistics("m", "99")),
        "wrong datatype": refused(lambda: client.infer("m", [given("x", X.astype(float), "FP64")], parameters=NEGATED)),
        "shared input": refused(lambda: client.infer("m", [region], parameters=NEGATED)),
        "classes": refused(lambda: client.infer("m", x, outputs=[top], parameters=NEGATED)),
        "load other": refused(lambda: client.load_model("other")),
        "load config": refused(lambda: client.load_model("m", config="{}")),
        "load": refused(lambda: client.load_model("m")),
        "unload": refused(lambda: client.unload_model("m")),
        "config": refused(lambda: client.get_model_config("m")),
        "shared memory": refused(client.get_system_shared_memory_status),
        "register": refused(lambda: client.register_system_shared_memory("region", "/key", 8)),
        "cuda": refused(client.get_cuda_shared_memory_status),
        "trace": refused(client.get_trace_settings),
        "log": refused(client.get_log_settings),
    }


def main() -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{sys.argv[1]}", concurrency=2)
    found = {"answers": answers(client), "described": described(client), "refusals": refusals(client)}
    client.close()
    print(json.dumps(found))  # noqa: T201, the test reads this


if __name__ == "__main__":
    main()
