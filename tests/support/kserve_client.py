"""Triton's stock client, in a process of its own, because its messages have the same names as ours.

Prints its results as JSON; with a port, results of the server of tests.support.kserve.
Run as `python -m tests.support.kserve_client PORT`.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from tests.support.values import VALUES

LONG = 30.0
X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
NEGATED = {"signature": "negated"}


def given(name: str, array: np.ndarray[Any, Any], datatype: str, of: Any = triton) -> Any:
    found = of.InferInput(name, array.shape, datatype)
    found.set_data_from_numpy(array)
    return found


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except triton.InferenceServerException as error:
        return error.status() or "", error.message()
    return "", ""


def told(result: Any) -> list[Any]:
    """The content of an answer: its id, its version and the negated values."""
    response = result.get_response()
    return [response.id, response.model_version, result.as_numpy("y").tolist()]


def answers(client: Any) -> dict[str, Any]:
    x = [given("x", X, "FP32")]
    every = client.infer("m", [given(name.lower(), array, name) for name, array in VALUES.items()])
    same = {name: every.as_numpy(name.lower()).tobytes() == array.tobytes() for name, array in VALUES.items()}
    same["BYTES"] = every.as_numpy("bytes").tolist() == VALUES["BYTES"].tolist()
    later: queue.Queue[Any] = queue.Queue()
    client.async_infer(
        "m", x, lambda result, error: later.put(error or told(result)), request_id="b", parameters=NEGATED
    )
    return {
        "same": same,
        "plain": told(client.infer("m", x, request_id="a", parameters=NEGATED)),
        "named": [
            client.infer("m", x, version, outputs=[triton.InferRequestedOutput("version")], parameters=NEGATED)
            .as_numpy("version").item()
            for version in ("", "3", "stable")
        ],
        "gzip": told(client.infer("m", x, parameters=NEGATED, compression_algorithm="gzip")),
        "deflate": told(client.infer("m", x, parameters=NEGATED, compression_algorithm="deflate")),
        "sequence": told(client.infer("m", x, sequence_id=7, priority=1, timeout=9, parameters=NEGATED)),
        "later": later.get(timeout=LONG),
    }  # fmt: skip


def streamed(client: Any) -> list[Any]:
    """Five requests of one stream; one of them is wrong."""
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: found.put(["refused", error.message()] if error else told(result)))
    for number in range(5):
        model = "other" if number == 2 else "m"
        client.async_stream_infer(model, [given("x", X * number, "FP32")], request_id=str(number), parameters=NEGATED)
    received = [found.get(timeout=LONG) for _ in range(5)]
    client.stop_stream()
    return received


def described(client: Any) -> dict[str, Any]:
    return {
        "live": client.is_server_live(),
        "ready": [client.is_server_ready(), client.is_model_ready("m"), client.is_model_ready("m", "stable")],
        "not ready": [client.is_model_ready("m", "5"), client.is_model_ready("empty"), client.is_model_ready("other")],
        "server": client.get_server_metadata(as_json=True),
        "model": client.get_model_metadata("m", "3", as_json=True),
        "index": client.get_model_repository_index(as_json=True)["models"],
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
        "wrong datatype": refused(lambda: client.infer("m", [given("x", X.astype(float), "FP64")], parameters=NEGATED)),
        "shared input": refused(lambda: client.infer("m", [region], parameters=NEGATED)),
        "classes": refused(lambda: client.infer("m", x, outputs=[top], parameters=NEGATED)),
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
        "log": refused(lambda: client.update_log_settings({"log_info": True})),
    }


def fields() -> dict[str, Any]:
    """This client's messages: by name, the number and kind of each field."""
    found: dict[str, Any] = {}

    def add(message: Any) -> None:
        found[message.full_name] = {one.name: [one.number, one.type, one.is_repeated] for one in message.fields}
        for nested in message.nested_types:
            add(nested)

    for one in service_pb2.DESCRIPTOR.message_types_by_name.values():
        add(one)
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    return {"messages": found, "methods": {one.name: [one.client_streaming, one.server_streaming] for one in methods}}


def main(port: str) -> None:
    address = f"127.0.0.1:{port}"
    with triton.InferenceServerClient(address) as client:
        client.load_model("m")
        said = {
            "fields": fields(),
            "described": described(client),
            "answers": answers(client),
            "streamed": streamed(client),
            "refusals": refusals(client),
            "statistics": client.get_inference_statistics("m", "4", as_json=True)["model_stats"],
        }
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
