"""The JSON of classify and regress to examples: objects of features, and what is common to all of them."""

from __future__ import annotations

from typing import Any

from tensorflow.core.example import example_pb2, feature_pb2
from tensorflow_serving.apis import input_pb2

from paramsync.errors import InputError
from paramsync.host.files import shown

from ...serving.specs import check_count
from .arrays import string
from .bodies import Body, kind
from .packed import Long

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
