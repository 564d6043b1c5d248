"""ModelSpec: the model, version and signature that a request or an answer names."""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import partial

from tensorflow_serving.apis import model_pb2

from paramsync.errors import InputError, NotServingError, UnknownModelError, UnknownVersionError
from paramsync.inference.resident import Resident

from .served import ServedModels

_MOST_NAMES = 4096
_NO_SERVABLE = "Servable not found"  # some clients take an error with these words as a sign that the server is up


def check_count(what: str, names: Sized) -> None:
    """Raise InputError for more names than any model has, before spending time on each name."""
    if len(names) > _MOST_NAMES:
        raise InputError(what, expected=f"at most {_MOST_NAMES} of them", found=len(names))


def model_name(spec: model_pb2.ModelSpec) -> str:
    """Return the name of the model. Raises InputError if the name is missing."""
    if not spec.name:
        raise InputError("model_spec", expected="the name of a model", found="none")
    return str(spec.name)


def take_resident(models: ServedModels, spec: model_pb2.ModelSpec) -> Resident:
    """Return the version that a request names by number or label, or the serving version if it names neither.

    Number 0 means the serving version, unless there is a version 0, because some clients send 0 for any version.

    Raises InputError, UnknownModelError, UnknownVersionError, UnknownLabelError, NotServingError.
    """
    try:
        served = models.find(model_name(spec))
        if not spec.HasField("version"):
            return served.take(None, spec.version_label)
        try:
            return served.take(spec.version.value)
        except UnknownVersionError:
            if spec.version.value:
                raise
            return served.take()
    except (UnknownModelError, NotServingError) as error:
        error.args = (f"{_NO_SERVABLE}: {error}",)
        raise


def latest(models: ServedModels, spec: model_pb2.ModelSpec) -> Callable[[], Resident] | None:
    """Return the function for `Question.latest`, or None if the request names a version."""
    if spec.HasField("version") or spec.version_label:
        return None
    name_alone = model_pb2.ModelSpec(name=spec.name)  # the spec itself would keep the whole request in memory
    return partial(take_resident, models, name_alone)


def spec_of_answer(model: str, version: int, signature: str) -> model_pb2.ModelSpec:
    """Make the ModelSpec of an answer."""
    spec = model_pb2.ModelSpec(name=model, signature_name=signature)
    spec.version.value = version  # the field is present even for 0
    return spec
