"""Predict, classify and regress as JSON: a body to a question, an answer to a body. Any thread may call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict
from tensorflow_serving.apis import input_pb2, model_pb2

from paramsync.errors import InputError
from paramsync.graphs.graph import DEFAULT_SIGNATURE, TensorSpec
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident

from ...serving.registry import Registry
from ...serving.specs import answered
from ..tfs.classify import (
    CLASSIFY,
    REGRESS,
    check_classified,
    check_regressed,
    examples,
    question_of,
)
from .answers import columns, results, rows, written
from .arrays import read
from .bodies import Body, kind, named, parsed
from .examples import fill
from .packed import Long, Part, is_b64, size
from .routes import Route

_ROW, _COLUMNS = "instances", "inputs"


@dataclass(frozen=True, slots=True)
class Asked:
    """A body that was read: its question, and how the answer is to be written."""

    question: Question
    form: str
    """instances, inputs, classify or regress."""


class Predictions:
    """Translates the three calls that predict."""

    def __init__(self, models: Registry) -> None:
        self._models = models

    def take(self, route: Route) -> Resident:
        """The version that answers. Raises RequestError, NotServingError."""
        return self._models.find(route.model).take(route.version, route.label)

    def read(self, route: Route, one: Resident, content: bytes) -> Asked:
        """Raises RequestError, NotImplementedError."""
        body = parsed(content)
        name = body.text("signature_name") or DEFAULT_SIGNATURE
        if route.call == "predict":
            return _predict(route.model, one, name, body)
        given = input_pb2.Input()
        fill(given, body)
        wanted = CLASSIFY if route.call == "classify" else REGRESS
        spec = model_pb2.ModelSpec(name=route.model, signature_name=name)
        return Asked(question_of(wanted, one, spec, examples(given)), route.call)


def write(asked: Asked, answer: Answer, *, named: bool) -> bytes:
    """`named` adds what answered. Raises InputError for what JSON cannot say, and for what is no result."""
    question = asked.question
    key, check, pieces = _FORMS[asked.form]
    if check is not None:
        check(question, answer)
    said = b""
    if named:
        spec = answered(question.model, question.resident, question.signature)
        said = b', "model_spec": ' + written(MessageToDict(spec, preserving_proto_field_name=True))
    return b"".join((b'{"', key, b'": ', *pieces(answer), said, b"}\n"))


_FORMS: dict[str, tuple[bytes, Callable[[Question, Answer], None] | None, Callable[[Answer], Iterator[bytes]]]] = {
    _ROW: (b"predictions", None, rows),
    _COLUMNS: (b"outputs", None, columns),
    "classify": (b"results", check_classified, results),
    "regress": (b"results", check_regressed, results),
}


def _predict(model: str, one: Resident, name: str, body: Body) -> Asked:
    if name not in one.graph.signatures:
        raise one.graph.unknown(name)
    given = [key for key in (_ROW, _COLUMNS) if key in body.fields]
    if len(given) != 1:
        found = " and ".join(given) or named(body.fields) or "no key"
        raise InputError("body", expected=f"either {_ROW!r} or {_COLUMNS!r}", found=found)
    specs = one.graph.signatures[name].inputs
    values = _of_rows(body.listed(_ROW), specs) if given == [_ROW] else _of_columns(body.fields[_COLUMNS], specs)
    inputs = {key: read(key, value, specs[key], body) for key, value in values.items()}
    fits = one.graph.fits(name, inputs)
    return Asked(Question(model, one, name, inputs, fits=fits), given[0])


def _of_rows(given: list[Any] | Long, specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    """The values of each input from those of each row."""
    parts = [given] if isinstance(given, list) else given.parts
    if not any(map(_has_names, parts)):
        return {_only(specs, _ROW): given}
    values: dict[str, list[Part]] = {name: [] for name in specs}
    at = 0
    for part in [given] if isinstance(given, list) else given.taken():
        for name, column in _by_name(part, specs, at).items():
            values[name].append(column)
        at += size(part)
    return {name: found[0] if isinstance(given, list) else Long(found) for name, found in values.items()}


def _has_names(part: Part) -> bool:
    if isinstance(part, list):
        return any(isinstance(row, dict) and not is_b64(row) for row in part)
    return isinstance(part, dict)


def _by_name(part: Part, specs: Mapping[str, TensorSpec], before: int) -> Mapping[str, Part]:
    """The values of each input, in some rows, before which there are so many."""
    if isinstance(part, dict) and part.keys() == specs.keys():
        return part
    rows = [part] if isinstance(part, dict) else part
    for at, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != specs.keys():
            found = named(sorted(row)) if isinstance(row, dict) else kind(row)
            expected = f"an object of {', '.join(specs)}"
            raise InputError(f"{_ROW}, row {before + at}", expected=expected, found=found or "none")
    return {name: [row[name] for row in rows] for name in specs}


def _of_columns(given: Any, specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    if not isinstance(given, dict) or is_b64(given):
        return {_only(specs, _COLUMNS): given}
    if given.keys() != specs.keys():
        found = named(sorted(given)) or "none"
        raise InputError(_COLUMNS, expected=", ".join(map(repr, sorted(specs))) or "none", found=found)
    return given


def _only(specs: Mapping[str, TensorSpec], what: str) -> str:
    if len(specs) != 1:
        raise InputError(what, expected=f"objects of {', '.join(specs) or 'nothing'}", found="values without a name")
    return next(iter(specs))
