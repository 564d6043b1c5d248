"""ModelSpec: which model, version and signature a request names, and which ones answered."""

from __future__ import annotations

from tensorflow_serving.apis import model_pb2

from inferencer.resident import Resident
from inferencer.services.models import Models
from paramsync.errors import InputError


def named(spec: model_pb2.ModelSpec) -> str:
    """The model. Raises InputError."""
    if not spec.name:
        raise InputError("model_spec", expected="the name of a model", found="none")
    return str(spec.name)


def taken(models: Models, spec: model_pb2.ModelSpec) -> Resident:
    """The version that answers: by number, by label, or the one that serves.

    Raises InputError, UnknownModelError, UnknownVersionError, UnknownLabelError, NotServingError.
    """
    version = spec.version.value if spec.HasField("version") else None
    return models.find(named(spec)).take(version, spec.version_label)


def answered(model: str, one: Resident, signature: str) -> model_pb2.ModelSpec:
    """What an answer says of itself."""
    spec = model_pb2.ModelSpec(name=model, signature_name=signature)
    spec.version.value = one.version.number
    return spec
