"""What is wrong with an HTTP request: which status and which text it gets, and that the next good one is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.http import call, check_unharmed, small_limits
from tests.support.in_process import InProcess

PREDICT = "/v1/models/plain:predict"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    with small_limits(tmp_path_factory.mktemp("web")) as web:
        yield web


@pytest.fixture(autouse=True)
def unharmed(web: InProcess) -> Iterator[None]:
    yield
    check_unharmed(web)


def _ids(cases: list[tuple[Any, str]]) -> list[str]:
    return [f"{at} {text[:50]}" for at, (_, text) in enumerate(cases)]


BODIES: list[tuple[Any, str]] = [
    (b"", "body: expected a JSON object, found nothing"),
    (b"[1, 2]", "body: expected a JSON object, found a list of 2"),
    (b"\xff\xfe{}", "body: expected JSON, found "),
    (b'{"instances": [[1, 2]', "body: expected JSON, found unexpected end of data at byte 21"),
    (b'{"instances": [[1, 2]]} and more', "body: expected JSON, found unexpected content after document at byte 24"),
    (b'{"instances": [[1, 2],, [1, 2]]}', "at byte 22 or near it"),
    (b'{"instances": [NaN' + b"[" * 100_000, "body: expected JSON, found "),
    (b'{"instances": ' + b'{"a":' * 100_000, "body: expected JSON, found depth limit exceeded"),
    (b'{"instances": [[' + b"9" * 10_000 + b", 1]]}", "body: expected JSON, found a number of too many digits"),
    (b'{"inputs": [[1, 2]], "inputs": [[3, 4]]}', "key 'inputs': expected once in an object, found 2 times"),
    (b'{"instances": [{"x": [1, 2], "x": [3, 4]}]}', "key 'x': expected once in an object, found 2 times"),
    ({}, "body: expected either 'instances' or 'inputs', found no key"),
    ({"rows": [1]}, "body: expected either 'instances' or 'inputs', found 'rows'"),
    (
        {"inputs": [[1, 2]], "instances": [[1, 2]]},
        "expected either 'instances' or 'inputs', found instances and inputs",
    ),
    ({"instances": [[1, 2]], "signature_name": 3}, "signature_name: expected a string, found a number"),
    (
        {"instances": [[1, 2]], "signature_name": "train"},
        "signature 'train' does not exist; there are: 'serving_default'",
    ),
    ({"instances": []}, "'instances': expected a list of one or more, found a list of 0"),
    ({"instances": {"x": [1, 2]}}, "'instances': expected a list of one or more, found an object"),
    ({"instances": [[1, 2], {"x": [1, 2]}]}, "instances, row 0: expected an object of x, found a list of 2"),
    ({"instances": [{"y": [1, 2]}]}, "instances, row 0: expected an object of x, found 'y'"),
    ({"inputs": {"x": [[1, 2]], "y": 1}}, "inputs: expected 'x', found 'x', 'y'"),
    ({"inputs": [[1, 2], [3]]}, "input 'x': expected lists of one shape, found ragged lists at level 2"),
    ({"inputs": [[1, 2]] * 30_000 + [[1]]}, "input 'x': expected lists of one shape, found "),
    ({"inputs": [["1", 2]]}, "input 'x': expected float32 [?, 2], found a string"),
    ({"inputs": [[True, 2]]}, "input 'x': expected float32 [?, 2], found a boolean"),
    (b'{"inputs": [[1e999, 2]]}', "input 'x': expected numbers that float32 has, found one beyond them"),
    (b'{"inputs": [[1e39, Infinity]]}', "input 'x': expected numbers that float32 has, found one beyond them"),
    ({"inputs": [[10**400, 2]]}, "input 'x': expected numbers that float32 has, found one beyond them"),
    (b'{"inputs": ' + b"[" * 40 + b"1" + b"]" * 40 + b"}", "input 'x': expected at most 32 dimensions, found more"),
]


@pytest.mark.parametrize(("body", "text"), BODIES, ids=_ids(BODIES))
def test_a_wrong_body_is_a_bad_request_with_both_sides(web: InProcess, body: Any, text: str) -> None:
    got = call(web.rest_port, "POST", PREDICT, body)
    assert got.status == 400
    assert text in got.error


NAMED: list[tuple[Any, str]] = [
    ({"instances": ["a"]}, "instances: expected objects of count, said, found values without a name"),
    (
        {"inputs": {"count": [1.5], "said": [""]}},
        "input 'count': expected int64 [?], found 1.5, a number with a fraction",
    ),
    (
        {"inputs": {"count": [1 << 63], "said": [""]}},
        "input 'count': expected numbers that int64 has, found one beyond",
    ),
    ({"inputs": {"count": [1], "said": [1]}}, 'input \'said\': expected strings or {"b64": "..."}, found a number'),
    ({"inputs": {"count": [1], "said": [{"b64": "a*b="}]}}, "input 'said', b64: expected base64, found 'a*b='"),
    ({"inputs": {"count": [1], "said": [{"b64": 1}]}}, "input 'said': expected strings or"),
    (b'{"inputs": {"count": [1], "said": ["\\ud800"]}}', "input 'said': expected strings of UTF-8, found half"),
]


@pytest.mark.parametrize(("body", "text"), NAMED, ids=_ids(NAMED))
def test_a_wrong_value_is_a_bad_request_that_names_its_input(web: InProcess, body: Any, text: str) -> None:
    got = call(web.rest_port, "POST", "/v1/models/named:predict", body)
    assert got.status == 400
    assert text in got.error


EXAMPLES: list[tuple[Any, str]] = [
    (
        {"examples": [{"x": 1}]},
        "signature 'serving_default': expected input inputs and outputs classes, scores or both",
    ),
    ({}, "body: expected key 'examples', found none"),
    ({"examples": []}, "'examples': expected a list of one or more, found a list of 0"),
    ({"examples": [1]}, "examples, number 0: expected an object of features, found a number"),
    ({"examples": [{}], "context": 1}, "context: expected an object of features, found a number"),
    (
        {"examples": [{"x": [[1]]}]},
        "feature 'x': expected numbers, booleans or strings, of one kind, found a list of 1",
    ),
    (
        {"examples": [{"x": [1, "a"]}]},
        "feature 'x': expected numbers, booleans or strings, of one kind, found a number and",
    ),
    (
        {"examples": [{}, {str(at): 1 for at in range(5000)}]},
        "examples, number 1, features: expected at most 4096 of them, found 5000",
    ),
    ({"examples": [{"x": 1 << 63}]}, "feature 'x': expected numbers that int64 or float32 has, found one beyond them"),
    (
        b'{"examples": [{"a": 1}], "signature_name": "\\ud800"}',
        "signature_name: expected a string of UTF-8, found half",
    ),
    (b'{"examples": [{"\\ud800": 1}]}', "feature: expected a name of UTF-8, found half a surrogate pair"),
]


@pytest.mark.parametrize(("body", "text"), EXAMPLES, ids=_ids(EXAMPLES))
def test_wrong_examples_are_a_bad_request(web: InProcess, body: Any, text: str) -> None:
    for method in ("classify", "regress"):
        got = call(web.rest_port, "POST", f"/v1/models/plain:{method}", body)
        assert got.status == 400
        assert text in got.error or method == "regress"


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/v1/models/other", 404, "model 'other' is not served here"),
        ("GET", "/v1/models/plain/versions/9", 404, "version 9 of model 'plain' is not there"),
        ("GET", "/v1/models/plain/labels/canary/metadata", 404, "label 'canary' of model 'plain' is not there"),
        ("GET", "/v1/models/empty", 503, "model 'empty' is not serving"),
        ("GET", f"/v1/models/plain/versions/{1 << 63}", 400, f"version: expected a number up to {(1 << 63) - 1}"),
        ("GET", "/v1/models/plain/versions/" + "0" * 5000 + "9" * 30, 400, "version: expected a number up to"),
        ("GET", "/v1/models/plain/versions/-1", 400, "request: expected GET /v1/models/NAME"),
        ("GET", "/v1/models/" + "n" * 5000, 404, "..."),
        ("GET", "/v1/models/pl%00ain%ff", 404, "is not served here"),
        ("GET", PREDICT, 400, "request: expected GET /v1/models/NAME"),
        ("POST", "/v1/models/plain:train", 400, "request: expected GET /v1/models/NAME"),
        ("DELETE", "/v1/models/plain", 400, "found DELETE /v1/models/plain"),
        ("GET", "/v3/health", 404, "expected /v1/models/..., /v2/..., /healthz or /metrics, found GET /v3/health"),
        ("GET", "/../../etc/passwd", 404, "found GET"),
    ],
    ids=[str(at) for at in range(14)],
)
def test_a_wrong_path_gets_the_status_of_tensorflow_serving(
    web: InProcess, method: str, path: str, status: int, text: str
) -> None:
    got = call(web.rest_port, method, path, {"instances": [[1, 2]]} if method == "POST" else None)
    assert (got.status, got.headers["Content-Type"]) == (status, "application/json")
    assert text in got.error


def test_outputs_that_have_no_rows_are_refused_to_who_asks_by_rows(in_process: InProcess) -> None:
    got = call(in_process.rest_port, "POST", "/v1/models/m:predict", {"instances": [[1, 2]]})
    expected = "outputs: expected as many rows in each; ask with 'inputs', found seen [6], total [1]"
    assert (got.status, got.error) == (400, expected)
