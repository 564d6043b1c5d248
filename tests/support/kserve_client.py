"""Triton's stock clients, each in a process of its own: messages have the same names as ours, sockets are patched.

Prints as JSON what a client finds at a port of the server of tests.support.kserve.
Run as `python -m tests.support.kserve_client grpc|http PORT`.
"""

from __future__ import annotations

import importlib
import json
import queue
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.values import VALUES

LONG = 30.0
X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
NEGATED = {"signature": "negated"}

triton: Any = importlib.import_module(f"tritonclient.{sys.argv[1]}")


def given(name: str, array: np.ndarray[Any, Any], datatype: str, **how: Any) -> Any:
    found = triton.InferInput(name, array.shape, datatype)
    found.set_data_from_numpy(array, **how)
    return found


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except triton.InferenceServerException as error:
        return error.status() or "", error.message()
    return "", ""


def told(result: Any) -> list[Any]:
    """Return the content of an answer: its id, its version and the negated values."""
    response = result.get_response()
    values = result.as_numpy("y").tolist()
    if isinstance(response, dict):
        return [response.get("id", ""), response["model_version"], values]
    return [response.id, response.model_version, values]


def answers(client: Any) -> dict[str, Any]:
    x = [given("x", X, "FP32")]
    every = client.infer("m", [given(name.lower(), array, name) for name, array in VALUES.items()])
    same = {name: every.as_numpy(name.lower()).tobytes() == array.tobytes() for name, array in VALUES.items()}
    same["BYTES"] = every.as_numpy("bytes").tolist() == VALUES["BYTES"].tolist()
    return {
        "same": same,
        "plain": told(client.infer("m", x, request_id="a", parameters=NEGATED)),
        "named": [
            client.infer("m", x, version, outputs=[triton.InferRequestedOutput("version")], parameters=NEGATED)
            .as_numpy("version").item()
            for version in ("", "3", "stable")
        ],
    }  # fmt: skip


def answers_by_grpc(client: Any) -> dict[str, Any]:
    x = [given("x", X, "FP32")]
    later: queue.Queue[Any] = queue.Queue()
    client.async_infer(
        "m", x, lambda result, error: later.put(error or told(result)), request_id="b", parameters=NEGATED
    )
    return {
        "gzip": told(client.infer("m", x, parameters=NEGATED, compression_algorithm="gzip")),
        "deflate": told(client.infer("m", x, parameters=NEGATED, compression_algorithm="deflate")),
        "sequence": told(client.infer("m", x, sequence_id=7, priority=1, timeout=9, parameters=NEGATED)),
        "later": later.get(timeout=LONG),
    }


def answers_by_http(client: Any) -> dict[str, Any]:
    x = [given("x", X, "FP32")]
    as_json = [triton.InferRequestedOutput("y", binary_data=False)]
    later = client.async_infer("m", x, request_id="b", parameters=NEGATED)
    text = [given("x", X, "FP32", binary_data=False)]
    return {
        "json": told(client.infer("m", text, outputs=as_json, parameters=NEGATED)),
        "mixed": told(client.infer("m", x, outputs=as_json, parameters=NEGATED)),
        "gzip": told(client.infer("m", x, parameters=NEGATED, request_compression_algorithm="gzip")),
        "deflate": told(client.infer("m", x, parameters=NEGATED, request_compression_algorithm="deflate")),
        "gzip back": told(client.infer("m", x, parameters=NEGATED, response_compression_algorithm="gzip")),
        "later": told(later.get_result()),
    }


def streamed(client: Any) -> list[Any]:
    """Send five requests on one stream, one of them wrong. Returns the answers."""
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: found.put(["refused", error.message()] if error else told(result)))
    for number in range(5):
        model = "other" if number == 2 else "m"
        client.async_stream_infer(model, [given("x", X * number, "FP32")], request_id=str(number), parameters=NEGATED)
    received = [found.get(timeout=LONG) for _ in range(5)]
    client.stop_stream()
    return received


def described(client: Any, **how: Any) -> dict[str, Any]:
    return {
        "live": client.is_server_live(),
        "ready": [client.is_server_ready(), client.is_model_ready("m"), client.is_model_ready("m", "stable")],
        "not ready": [client.is_model_ready("m", "5"), client.is_model_ready("empty"), client.is_model_ready("other")],
        "server": client.get_server_metadata(**how),
        "model": client.get_model_metadata("m", "3", **how),
        "index": client.get_model_repository_index(**how),
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
        "load": refused(lambda: client.load_model("m")),
        "load other": refused(lambda: client.load_model("other")),
        "load empty": refused(lambda: client.load_model("empty")),
        "load config": refused(lambda: client.load_model("m", config="{}")),
        "unload": refused(lambda: client.unload_model("m")),
        "config": refused(lambda: client.get_model_config("m")),
        "shared memory": refused(client.get_system_shared_memory_status),
        "register": refused(lambda: client.register_system_shared_memory("region", "/key", 8)),
        "unregister": refused(client.unregister_system_shared_memory),
        "cuda": refused(client.get_cuda_shared_memory_status),
        "trace": refused(client.get_trace_settings),
        "log": refused(client.get_log_settings),
        "log set": refused(lambda: client.update_log_settings({"log_info": True})),
    }


def fields() -> dict[str, Any]:
    """Return this client's messages by name: the number and kind of each field."""
    found: dict[str, Any] = {}

    def add(message: Any) -> None:
        found[message.full_name] = {one.name: [one.number, one.type, one.is_repeated] for one in message.fields}
        for nested in message.nested_types:
            add(nested)

    descriptor = triton.service_pb2.DESCRIPTOR
    for one in descriptor.message_types_by_name.values():
        add(one)
    methods = descriptor.services_by_name["GRPCInferenceService"].methods
    return {"messages": found, "methods": {one.name: [one.client_streaming, one.server_streaming] for one in methods}}


def by_grpc(address: str) -> dict[str, Any]:
    with triton.InferenceServerClient(address) as client:
        return {
            "fields": fields(),
            "described": described(client, as_json=True),
            "answers": answers(client) | answers_by_grpc(client),
            "streamed": streamed(client),
            "refusals": refusals(client),
            "statistics": client.get_inference_statistics("m", "4", as_json=True)["model_stats"],
        }


def by_http(address: str) -> dict[str, Any]:
    client = triton.InferenceServerClient(address, concurrency=2)
    found = {
        "answers": answers(client) | answers_by_http(client),
        "described": described(client),
        "statistics": client.get_inference_statistics("m")["model_stats"],
        "of one version": client.get_inference_statistics("m", "stable")["model_stats"],
        "of all models": client.get_inference_statistics()["model_stats"],
        "refusals": refusals(client),
    }
    client.close()
    return found


if __name__ == "__main__":
    found = {"grpc": by_grpc, "http": by_http}[sys.argv[1]](f"127.0.0.1:{sys.argv[2]}")
    sys.stdout.write(json.dumps(found))
