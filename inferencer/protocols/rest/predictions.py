"""Predict, classify and regress as JSON: a body to a question, an answer to a body. Any thread may call it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from google.protobuf.json_format import MessageToDict
from tensorflow.core.example import example_pb2, feature_pb2
from tensorflow_serving.apis import input_pb2, model_pb2

from paramsync.errors import InputError, RequestError
from paramsync.graphs.specs import DEFAULT_SIGNATURE, TensorSpec
from paramsync.host.files import shown
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident

from ...serving.served import Models
from ...serving.specs import answered, check_count
from ..tfs.classify import (
    CLASSIFY,
    REGRESS,
    check_classified,
    check_regressed,
    examples,
    question_of,
)
from .answers import columns, results, rows, written
from .arrays import read, string
from .bodies import Body, kind, named, parsed, parsed_bytes
from .packed import Long, Part, is_b64, size

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


_EXAMPLES, _CONTEXT = "examples", "context"


def fill(given: input_pb2.Input, body: Body) -> None:
    """Raises InputError."""
    into = given.example_list
    if _CONTEXT in body.fields:
        into = given.example_list_with_context
        _example(_CONTEXT, body.fields[_CONTEXT], into.context)
    for at, value in enumerate(body.listed(_EXAMPLES)):
        _example(f"{_EXAMPLES}, number {at}", value, into.examples.add())


def _example(what: str, value: Any, example: example_pb2.Example) -> None:
    if not isinstance(value, dict):
        raise InputError(what, expected="an object of features", found=kind(value))
    check_count(
        f"{what}, features", value
    )  # what has very many is written in one step, which nobody else can interrupt
    example.features.SetInParent()
    for name, values in value.items():
        some = list(values) if isinstance(values, list | Long) else [values]
        _feature(f"feature {shown(name)}", some, _entry(example, name))


def _entry(example: example_pb2.Example, name: str) -> feature_pb2.Feature:
    try:
        return example.features.feature[name]
    except (ValueError, UnicodeEncodeError) as error:
        raise InputError("feature", expected="a name of UTF-8", found="half a surrogate pair") from error


def _feature(what: str, values: list[Any], feature: feature_pb2.Feature) -> None:
    """Of the kind that its values have; whole numbers among others are taken for such."""
    kinds = {_KINDS.get(type(one)) for one in values}
    if kinds == {"int64", "float"}:
        kinds = {"float"}
    if None in kinds or len(kinds) > 1:
        found = " and ".join(sorted({kind(one) for one in values}))
        raise InputError(what, expected="numbers, booleans or strings, of one kind", found=found)
    try:
        if kinds == {"bytes"}:
            feature.bytes_list.value.extend(string(what, one) for one in values)
        elif kinds == {"float"}:
            feature.float_list.value.extend(float(one) for one in values)
        elif kinds:
            feature.int64_list.value.extend(int(one) for one in values)
    except (OverflowError, ValueError) as error:
        raise InputError(what, expected="numbers that int64 or float32 has", found="one beyond them") from error


_KINDS = {bool: "int64", int: "int64", float: "float", str: "bytes", dict: "bytes"}


_ROW, _COLUMNS = "instances", "inputs"


class Prediction:
    """One request: read, asked and written by these three, which any thread may call."""

    protocol = "rest"

    def __init__(self, models: Models, route: Route, *, named: bool) -> None:
        """`named` has the answer say what answered."""
        self.model = route.model
        self._models = models
        self._route = route
        self._named = named
        self._form = route.call
        """instances, inputs, classify or regress."""

    def take(self) -> Resident:
        """The version that answers. Raises RequestError, NotServingError."""
        return self._models.find(self.model).take(self._route.version, self._route.label)

    def bytes_to_read(self, content: bytes) -> int:
        """How much `read` takes at most, beside the content."""
        return parsed_bytes(content)

    def read(self, resident: Resident, content: bytes) -> Question:
        """Raises RequestError, NotImplementedError."""
        body = parsed(content)
        name = body.text("signature_name") or DEFAULT_SIGNATURE
        if self._form == "predict":
            self._form = _form(resident, name, body)
            return _predict(self.model, resident, name, body, self._form)
        given = input_pb2.Input()
        fill(given, body)
        wanted = CLASSIFY if self._form == "classify" else REGRESS
        spec = model_pb2.ModelSpec(name=self.model, signature_name=name)
        return question_of(wanted, resident, spec, examples(given))

    def write(self, question: Question, answer: Answer) -> tuple[bytes, Mapping[str, str]]:
        """The body and its headers. Raises InputError for what JSON cannot say, and for what is no result."""
        key, check, pieces = _FORMS[self._form]
        if check is not None:
            check(question, answer)
        said = b""
        if self._named:
            spec = answered(question.model, question.resident, question.signature)
            said = b', "model_spec": ' + written(MessageToDict(spec, preserving_proto_field_name=True))
        return b"".join((b'{"', key, b'": ', *pieces(answer), said, b"}\n")), {}


_FORMS: dict[str, tuple[bytes, Callable[[Question, Answer], None] | None, Callable[[Answer], Iterator[bytes]]]] = {
    _ROW: (b"predictions", None, rows),
    _COLUMNS: (b"outputs", None, columns),
    "classify": (b"results", check_classified, results),
    "regress": (b"results", check_regressed, results),
}


def _form(one: Resident, name: str, body: Body) -> str:
    if name not in one.graph.signatures:
        raise one.graph.unknown(name)
    given = [key for key in (_ROW, _COLUMNS) if key in body.fields]
    if len(given) != 1:
        found = " and ".join(given) or named(body.fields) or "no key"
        raise InputError("body", expected=f"either {_ROW!r} or {_COLUMNS!r}", found=found)
    return given[0]


def _predict(model: str, one: Resident, name: str, body: Body, form: str) -> Question:
    specs = one.graph.signatures[name].inputs
    values = _of_rows(body.listed(_ROW), specs) if form == _ROW else _of_columns(body.fields[_COLUMNS], specs)
    inputs = {key: read(key, value, specs[key], body) for key, value in values.items()}
    return Question(model, one, name, inputs, fits=one.graph.fits(name, inputs))


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
