"""TensorFlow Serving's REST API: parses paths, turns JSON into questions, and turns answers into JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from google.protobuf.json_format import MessageToDict
from tensorflow.core.example import example_pb2, feature_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2, input_pb2, model_pb2

from paramsync.errors import InputError, RequestError
from paramsync.graphs.specs import DEFAULT_SIGNATURE, TensorSpec
from paramsync.host.files import shown
from paramsync.inference import batchable
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident

from ...serving.served import ServedModels
from ...serving.specs import check_count, spec_of_answer
from ..json_arrays import Array, count_values, is_b64, read, string, to_json, to_lists, write_list, write_lists
from ..json_reader import Body, kind, named, parsed_bytes
from .classify import (
    CLASSIFY,
    OUTPUTS,
    REGRESS,
    SCORES,
    check_classified,
    check_regressed,
    classes_and_scores,
    examples,
    question_of,
)
from .model_service import states
from .predict import FIELD, metadata

_WHERE = r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
_CALL = re.compile(rf"{_WHERE}:(classify|predict|regress)", re.ASCII | re.IGNORECASE)
_LOOK = re.compile(rf"{_WHERE}(?:/(metadata))?", re.ASCII | re.IGNORECASE)
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Route:
    """A parsed path. `call` is one of classify, predict, regress, metadata, status."""

    call: str
    model: str
    version: int | None = None
    label: str = ""

    def spec(self, signature: str = "") -> model_pb2.ModelSpec:
        """Return the route as a ModelSpec of gRPC."""
        spec = model_pb2.ModelSpec(name=self.model, signature_name=signature)
        if self.label:
            spec.version_label = self.label
        elif self.version is not None:
            spec.version.value = self.version
        return spec


def route(method: str, path: str) -> Route:
    """Parse a path without its query. Raises RequestError for an unknown path."""
    match = {"POST": _CALL, "GET": _LOOK}.get(method, _LOOK).fullmatch(path)
    if match is None or method not in ("GET", "POST"):
        expected = (
            "GET /v1/models/NAME[/versions/N|/labels/L][/metadata] or POST"
            " /v1/models/NAME[/versions/N|/labels/L]:predict|:classify|:regress"
        )
        raise RequestError(f"request: expected {expected}, found {method} {path}")
    model, version, label, call = match.groups()
    if version is not None and int(version.lstrip("0")[:20] or 0) > _MOST:
        raise RequestError(f"version: expected a number up to {_MOST}, found {version[:200]}")
    number = None if version is None else int(version.lstrip("0") or 0)
    return Route((call or "status").lower(), unquote(model), number, unquote(label or ""))


_plain = partial(MessageToDict, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def status_body(models: ServedModels, route: Route) -> bytes:
    """Write the states of versions. Raises RequestError, NotServingError."""
    request = get_model_status_pb2.GetModelStatusRequest(model_spec=route.spec())
    return _text(_plain(states(models, request)))


def metadata_body(models: ServedModels, route: Route) -> bytes:
    """Write the signatures of a version. Raises RequestError, NotServingError."""
    request = get_model_metadata_pb2.GetModelMetadataRequest(model_spec=route.spec(), metadata_field=[FIELD])
    response = metadata(models, request)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    response.metadata[FIELD].Unpack(signatures)
    return _text({"model_spec": _plain(response.model_spec), "metadata": {FIELD: _plain(signatures)}})


def _text(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


_EXAMPLES, _CONTEXT = "examples", "context"
_ROWS, _COLUMNS = "instances", "inputs"


class RestPrediction:
    """One request. Any thread may call its methods."""

    protocol = "rest"

    def __init__(self, models: ServedModels, route: Route, *, named: bool) -> None:
        """If `named`, the answer names model, version and signature."""
        self.model = route.model
        self.route = f"/v1/models/{{model}}:{route.call}"
        self._models = models
        self._route = route
        self._named = named
        self._form = route.call
        """The form of the body: instances, inputs, classify or regress; predict until `read` sees the body."""

    def take(self) -> Resident:
        """Return the version that shall answer. Raises RequestError, NotServingError."""
        return self._models.find(self.model).take(self._route.version, self._route.label)

    def bytes_to_read(self, content: bytes) -> int:
        """Estimate the most bytes of memory that `read` takes in addition to the content."""
        return parsed_bytes(content)

    def read(self, resident: Resident, content: bytes) -> Question:
        """Read the question from a body. Raises RequestError, NotImplementedError."""
        body = Body(content)
        latest = None if self._route.version is not None or self._route.label else self.take
        name = body.text("signature_name") or DEFAULT_SIGNATURE
        if self._form == "predict":
            self._form = _form(resident, name, body)
            specs = resident.graph.signatures[name].inputs
            inputs = (_of_rows if self._form == _ROWS else _of_columns)(body, specs)
            fits = batchable.fits(resident.graph, name, inputs)
            question = Question(self.model, resident, name, inputs, fits=fits, latest=latest)
        else:
            task = CLASSIFY if self._form == "classify" else REGRESS
            spec = model_pb2.ModelSpec(name=self.model, signature_name=name)
            question = question_of(task, resident, spec, examples(_examples(body)), latest)
        return question

    def write(self, question: Question, answer: Answer) -> tuple[bytes, Mapping[str, str]]:
        """Return the body and its headers. Raises InputError for values that JSON lacks or that are not results."""
        key, check, values = _FORMS[self._form]
        if check is not None:
            check(question, answer)
        spec = b""
        if self._named:
            answered_by = spec_of_answer(question.model, question.resident.version.number, question.signature)
            spec = b', "model_spec": ' + to_json(MessageToDict(answered_by, preserving_proto_field_name=True))
        return b"".join((b'{"', key, b'": ', *values(answer), spec, b"}\n")), {}


# Requests -------------------------------------------------------------------------------------------------------------


def _form(resident: Resident, name: str, body: Body) -> str:
    if name not in resident.graph.signatures:
        raise resident.graph.unknown(name)
    given = [key for key in (_ROWS, _COLUMNS) if key in body.fields]
    if len(given) != 1:
        found = " and ".join(given) or named(body.fields) or "no key"
        raise InputError("body", expected=f"either {_ROWS!r} or {_COLUMNS!r}", found=found)
    return given[0]


def _of_rows(body: Body, specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Read `instances`, a list of rows."""
    rows = body.listed(_ROWS)
    by_name = any(isinstance(row, dict) and not is_b64(row) for row in rows)
    columns = _by_name(rows, specs) if by_name else {_only(specs, _ROWS): rows}
    return {name: read(name, column, specs[name], body) for name, column in columns.items()}


def _by_name(rows: list[Any], specs: Mapping[str, TensorSpec]) -> dict[str, list[Any]]:
    """Turn rows of objects into a column for each input."""
    for at, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != specs.keys():
            found = named(sorted(row)) if isinstance(row, dict) else kind(row)
            raise InputError(f"{_ROWS}, row {at}", expected=f"an object of {', '.join(specs)}", found=found or "none")
    return {name: [row[name] for row in rows] for name in specs}


def _of_columns(body: Body, specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    values = body.fields[_COLUMNS]
    if not isinstance(values, dict) or is_b64(values):
        values = {_only(specs, _COLUMNS): values}
    elif values.keys() != specs.keys():
        found = named(sorted(values)) or "none"
        raise InputError(_COLUMNS, expected=", ".join(map(repr, sorted(specs))) or "none", found=found)
    return {name: read(name, value, specs[name], body) for name, value in values.items()}


def _only(specs: Mapping[str, TensorSpec], what: str) -> str:
    if len(specs) != 1:
        raise InputError(what, expected=f"objects of {', '.join(specs) or 'nothing'}", found="values without a name")
    return next(iter(specs))


def _examples(body: Body) -> input_pb2.Input:
    """Read `examples` and `context`. Raises InputError."""
    request = input_pb2.Input()
    into = request.example_list
    if _CONTEXT in body.fields:
        into = request.example_list_with_context
        _example(_CONTEXT, body.fields[_CONTEXT], into.context)
    for at, value in enumerate(body.listed(_EXAMPLES)):
        _example(f"{_EXAMPLES}, number {at}", value, into.examples.add())
    return request


def _example(what: str, value: Any, example: example_pb2.Example) -> None:
    if not isinstance(value, dict):
        raise InputError(what, expected="an object of features", found=kind(value))
    check_count(f"{what}, features", value)  # many features would hold the GIL for too long
    example.features.SetInParent()
    for name, values in value.items():
        some = values if isinstance(values, list) else [values]
        _feature(f"feature {shown(name)}", some, _entry(example, name))


def _entry(example: example_pb2.Example, name: str) -> feature_pb2.Feature:
    try:
        return example.features.feature[name]
    except (ValueError, UnicodeEncodeError) as error:
        raise InputError("feature", expected="a name of UTF-8", found="half a surrogate pair") from error


def _feature(what: str, values: list[Any], feature: feature_pb2.Feature) -> None:
    """Add values to a feature. They must be of one kind; integers among floats count as floats."""
    kinds = {_KINDS.get(type(value)) for value in values}
    if kinds == {"int64", "float"}:
        kinds = {"float"}
    if None in kinds or len(kinds) > 1:
        found = " and ".join(sorted({kind(value) for value in values}))
        raise InputError(what, expected="numbers, booleans or strings, of one kind", found=found)
    try:
        if kinds == {"bytes"}:
            feature.bytes_list.value.extend(string(what, value) for value in values)
        elif kinds == {"float"}:
            feature.float_list.value.extend(map(float, values))
        elif kinds:
            feature.int64_list.value.extend(map(int, values))
    except (OverflowError, ValueError) as error:
        raise InputError(what, expected="numbers that int64 or float32 has", found="one beyond them") from error


_KINDS = {bool: "int64", int: "int64", float: "float", str: "bytes", dict: "bytes"}


# Answers, in pieces ---------------------------------------------------------------------------------------------------


def _columns(answer: Answer) -> Iterator[bytes]:
    """Write the value of the only output, or an object of outputs. Raises InputError for a dtype that JSON lacks."""
    if len(answer) == 1:
        yield from write_lists(*next(iter(answer.items())))
        return
    for at, (name, array) in enumerate(answer.items()):
        yield (b", " if at else b"{") + to_json(name) + b": "
        yield from write_lists(name, array)
    yield b"}"


def _rows(answer: Answer) -> Iterator[bytes]:
    """Write for each row the value of the only output, or an object of outputs.

    Raises InputError for a dtype that JSON lacks, and for outputs that are scalars or have different numbers of rows.
    """
    counts = {array.shape[0] if array.ndim else None for array in answer.values()}
    if len(counts) > 1 or None in counts:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in answer.items())
        raise InputError("outputs", expected="as many rows in each; ask with 'inputs'", found=shapes)
    if len(answer) == 1:
        yield from write_lists(*next(iter(answer.items())))
        return

    def piece(first: int, end: int) -> list[Any]:
        lists = [to_lists(name, array[first:end]) for name, array in answer.items()]
        return [dict(zip(answer, row, strict=True)) for row in zip(*lists, strict=True)]

    [count] = counts
    yield from write_list(count or 0, sum(map(count_values, answer.values())), piece)


def _results(answer: Answer) -> Iterator[bytes]:
    """Write for each example its pairs of class and score (classify), or its value (regress)."""
    if OUTPUTS in answer:
        yield from write_lists(OUTPUTS, answer[OUTPUTS].reshape(-1))
        return
    labels, scores = classes_and_scores(answer)

    def piece(first: int, end: int) -> list[Any]:
        names = [[label.decode(errors="replace") for label in row] for row in labels[first:end].tolist()]
        both = zip(names, to_lists(SCORES, scores[first:end]), strict=True)
        return [list(map(list, zip(*row, strict=True))) for row in both]

    yield from write_list(len(scores), count_values(scores), piece)


_FORMS: dict[str, tuple[bytes, Callable[[Question, Answer], None] | None, Callable[[Answer], Iterator[bytes]]]] = {
    _ROWS: (b"predictions", None, _rows),
    _COLUMNS: (b"outputs", None, _columns),
    "classify": (b"results", check_classified, _results),
    "regress": (b"results", check_regressed, _results),
}
