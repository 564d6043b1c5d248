"""Configurations of TensorFlow Serving, as stock clients send them, and a call that shows which version answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.config import model_server_config_pb2

from tests.support.published import proven
from tests.support.running import LONG, Running, request, seen


def config(*models: Any) -> model_management_pb2.ReloadConfigRequest:
    message = model_management_pb2.ReloadConfigRequest()
    message.config.model_config_list.SetInParent()
    message.config.model_config_list.config.extend(models)
    return message


def model(
    path: Path | str,
    *,
    name: str = "m",
    latest: int | None = None,
    specific: tuple[int, ...] | None = None,
    labels: dict[str, int] | None = None,
    **fields: Any,
) -> Any:
    message = model_server_config_pb2.ModelConfig(
        name=name, base_path=str(path), **{"model_platform": "tensorflow", **fields}
    )
    if latest is not None:
        message.model_version_policy.latest.num_versions = latest
    if specific is not None:
        message.model_version_policy.specific.versions.extend(specific)
        message.model_version_policy.specific.SetInParent()
    message.version_labels.update(labels or {})
    return message


def apply(running: Running, *models: Any) -> None:
    answer = running.model_service.HandleReloadConfigRequest(config(*models), timeout=LONG)
    assert (answer.status.error_code, answer.status.error_message) == (0, "")


def answers(running: Running, *, name: str = "m", label: str = "", version: int | None = None) -> int:
    """Return the version that answers; its parameters prove it."""
    message = request(name, version=version)
    if label:
        message.model_spec.version_label = label
    answer = running.prediction_service.Predict(message, timeout=LONG)
    number = int(answer.model_spec.version.value)
    assert proven(seen(answer), number)
    return number
