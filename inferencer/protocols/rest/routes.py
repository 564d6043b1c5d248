"""Which call of TensorFlow Serving's REST API a path means. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from tensorflow_serving.apis import model_pb2

from paramsync.errors import RequestError

_WHERE = r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
_CALL = re.compile(rf"{_WHERE}:(classify|predict|regress)", re.ASCII | re.IGNORECASE)
_LOOK = re.compile(rf"{_WHERE}(?:/(metadata))?", re.ASCII | re.IGNORECASE)
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Route:
    """`call` is one of classify, predict, regress, metadata, status."""

    call: str
    model: str
    version: int | None = None
    label: str = ""

    def spec(self, signature: str = "") -> model_pb2.ModelSpec:
        """The same as gRPC says it."""
        spec = model_pb2.ModelSpec(name=self.model, signature_name=signature)
        if self.label:
            spec.version_label = self.label
        elif self.version is not None:
            spec.version.value = self.version
        return spec


def route(method: str, path: str) -> Route:
    """The path as it came, without its query. Raises RequestError for what begins with /v1/ and means nothing."""
    found = {"POST": _CALL, "GET": _LOOK}.get(method, _LOOK).fullmatch(path)
    if found is None or method not in ("GET", "POST"):
        expected = (
            "GET /v1/models/NAME[/versions/N|/labels/L][/metadata] or POST"
            " /v1/models/NAME[/versions/N|/labels/L]:predict|:classify|:regress"
        )
        raise RequestError(f"request: expected {expected}, found {method} {path}")
    model, version, label, call = found.groups()
    if version is not None and int(version[:20]) > _MOST:
        raise RequestError(f"version: expected a number up to {_MOST}, found {version}")
    number = None if version is None else int(version)
    return Route((call or "status").lower(), unquote(model), number, unquote(label or ""))
