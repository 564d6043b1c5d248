"""ModelSpec: which model, version and signature a request names, and which ones answered."""

from __future__ import annotations

from collections.abc import Sized

from tensorflow_serving.apis import model_pb2

from inferencer.resident import Resident
from inferencer.services.models import Models
from paramsync.errors import InputError
from paramsync.files import shown

_LABEL = 200


_MOST_NAMES = 4096


def check_count(what: str, names: Sized) -> None:
    """Raise InputError where more is named than any model has, before time is spent on each."""
    if len(names) > _MOST_NAMES:
        raise InputError(what, expected=f"at most {_MOST_NAMES} of them", found=len(names))


def named(spec: model_pb2.ModelSpec) -> str:
    """The model. Raises InputError."""
    if not spec.name:
        raise InputError("model_spec", expected="the name of a model", found="none")
    return str(spec.name)


def check_label(where: str, label: str) -> str:
    """A label that may be given to a version: what status, metrics and kept choices can hold. Raises InputError."""
    if not label:
        raise InputError(where, expected="a name, such as stable", found="none")
    if len(label) > _LABEL or not label.isprintable():
        expected = f"a name of at most {_LABEL} characters that can be printed"
        raise InputError(where, expected=expected, found=shown(label))
    return label


def taken(models: Models, spec: model_pb2.ModelSpec) -> Resident:
    """The version that answers: by number, by label, or the one that serves.

    Raises InputError, UnknownModelError, UnknownVersionError, UnknownLabelError, NotServingError.
    """
    version = spec.version.value if spec.HasField("version") else None
    return models.find(named(spec)).take(version, spec.version_label)


def answered(model: str, one: Resident, signature: str) -> model_pb2.ModelSpec:
    """What an answer says of itself."""
    spec = model_pb2.ModelSpec()
    fill(spec, model, one, signature)
    return spec


def fill(spec: model_pb2.ModelSpec, model: str, one: Resident, signature: str) -> None:
    """Say it in place."""
    spec.name = model
    spec.signature_name = signature
    spec.version.value = one.version.number
