"""Status and metadata of a model as the JSON that TensorFlow Serving writes."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToDict
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

from ...serving.registry import Models
from ..tfs.metadata import FIELD, metadata
from ..tfs.model_service import states
from .routes import Route

_told = partial(MessageToDict, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def status_body(models: Models, route: Route) -> bytes:
    """Raises RequestError, NotServingError."""
    request = get_model_status_pb2.GetModelStatusRequest(model_spec=route.spec())
    return _text(_told(states(models, request)))


def metadata_body(models: Models, route: Route) -> bytes:
    """Raises RequestError, NotServingError."""
    request = get_model_metadata_pb2.GetModelMetadataRequest(model_spec=route.spec(), metadata_field=[FIELD])
    response = metadata(models, request)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    response.metadata[FIELD].Unpack(signatures)
    return _text({"model_spec": _told(response.model_spec), "metadata": {FIELD: _told(signatures)}})


def _text(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
