"""Predict, classify and regress as JSON: a body to a question, an answer to a body. Any thread may call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict
from tensorflow_serving.apis import classification_pb2, regression_pb2

from inferencer.answering.questions import Answer, Question
from inferencer.resident import Resident
from inferencer.rest.answers import columns, results, rows, written
from inferencer.rest.arrays import is_b64, read
from inferencer.rest.bodies import Body, kind, parsed
from inferencer.rest.examples import fill
from inferencer.rest.routes import Route
from inferencer.services.classify import Classify, Regress, check_classified, check_regressed
from inferencer.services.models import Models
from inferencer.services.specs import answered
from paramsync.errors import InputError, UnknownSignatureError
from paramsync.graphs.graph import DEFAULT_SIGNATURE, TensorSpec

_ROW, _COLUMNS = "instances", "inputs"


@dataclass(frozen=True, slots=True)
class Asked:
    """A body that was read: its question, and how the answer is to be written."""

    question: Question
    form: str
    """instances, inputs, classify or regress."""


class Predictions:
    """Translates the three calls that predict."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._classify = Classify(models)
        self._regress = Regress(models)

    def read(self, route: Route, content: bytes) -> Asked:
        """Raises RequestError, NotServingError, NotImplementedError."""
        served = self._models.find(route.model)  # before anything is made of the body
        body = parsed(content)
        name = body.text("signature_name") or DEFAULT_SIGNATURE
        if route.call == "predict":
            return _predict(route.model, served.take(route.version, route.label), name, body)
        if route.call == "classify":
            classify = classification_pb2.ClassificationRequest(model_spec=route.spec(name))
            fill(classify.input, body)
            return Asked(self._classify.read(classify)[0], route.call)
        regress = regression_pb2.RegressionRequest(model_spec=route.spec(name))
        fill(regress.input, body)
        return Asked(self._regress.read(regress)[0], route.call)


def write(asked: Asked, answer: Answer) -> bytes:
    """Raises InputError for what JSON cannot say, and for what is no result."""
    question = asked.question
    key, check, pieces = _FORMS[asked.form]
    if check is not None:
        check(question, answer)
    spec = answered(question.model, question.resident, question.signature)
    told = written(MessageToDict(spec, preserving_proto_field_name=True))
    return b"".join((b'{"', key, b'": ', *pieces(answer), b', "model_spec": ', told, b"}\n"))


_FORMS: dict[str, tuple[bytes, Callable[[Question, Answer], None] | None, Callable[[Answer], Iterator[bytes]]]] = {
    _ROW: (b"predictions", None, rows),
    _COLUMNS: (b"outputs", None, columns),
    "classify": (b"results", check_classified, results),
    "regress": (b"results", check_regressed, results),
}


def _predict(model: str, one: Resident, name: str, body: Body) -> Asked:
    if name not in one.graph.signatures:
        raise UnknownSignatureError(name, one.graph.signatures)
    given = [key for key in (_ROW, _COLUMNS) if key in body.fields]
    if len(given) != 1:
        found = " and ".join(given) or ", ".join(map(repr, body.fields)) or "no key"
        raise InputError("body", expected=f"either {_ROW!r} or {_COLUMNS!r}", found=found)
    specs = one.graph.signatures[name].inputs
    values = _of_rows(body.listed(_ROW), specs) if given == [_ROW] else _of_columns(body.fields[_COLUMNS], specs)
    inputs = {key: read(key, value, specs[key], body) for key, value in values.items()}
    one.graph.check_inputs(name, inputs)
    return Asked(Question(model, one, name, inputs), given[0])


def _of_rows(given: Sequence[Any], specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    """The values of each input from those of each row."""
    if not any(isinstance(row, dict) and not is_b64(row) for row in given):
        return {_only(specs, _ROW): given}
    values: dict[str, list[Any]] = {name: [] for name in specs}
    for at, row in enumerate(given):
        if not isinstance(row, dict) or row.keys() != specs.keys():
            found = ", ".join(sorted(row)) if isinstance(row, dict) else kind(row)
            raise InputError(f"{_ROW}, row {at}", expected=f"an object of {', '.join(specs)}", found=found or "none")
        for name, value in row.items():
            values[name].append(value)
    return values


def _of_columns(given: Any, specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    if not isinstance(given, dict) or is_b64(given):
        return {_only(specs, _COLUMNS): given}
    if given.keys() != specs.keys():
        found = ", ".join(sorted(given)) or "none"
        raise InputError(_COLUMNS, expected=", ".join(sorted(specs)) or "none", found=found)
    return given


def _only(specs: Mapping[str, TensorSpec], what: str) -> str:
    if len(specs) != 1:
        raise InputError(what, expected=f"objects of {', '.join(specs) or 'nothing'}", found="values without a name")
    return next(iter(specs))
