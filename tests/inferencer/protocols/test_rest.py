"""TensorFlow Serving's REST API over real HTTP: status, metadata, predict, classify, regress, health, metrics."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.examples import Store
from tests.support.http import Got, Named, Plain, call
from tests.support.programs import eventually
from tests.support.published import Publisher, proven
from tests.support.running import LONG, Running


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Models `plain` in versions 3 and 4, `named` in 5 and `examples` in 6, and `empty`."""
    folder = tmp_path_factory.mktemp("web")
    with Store.make(folder / "examples", folder / "saved") as store:
        running = Running(*(folder / name for name in ("plain", "named", "examples", "empty")))
        plain, named = Publisher(folder / "plain"), Publisher(folder / "named")
        for number in (3, 4):
            plain.publish(number, kind=Plain)
            running.server.models.follower("plain").sync(timeout=LONG)
        named.publish(5, kind=Named)
        store.publish(6)
        for name in ("named", "examples"):
            running.server.models.follower(name).sync(timeout=LONG)
        yield running
        plain.close()
        named.close()
        running.close()


def predict(web: Running, body: Any, model: str = "plain") -> Got:
    return call(web.rest_port, "POST", f"/v1/models/{model}:predict", body)


def said(version: int, model: str = "plain", signature: str = "serving_default") -> dict[str, str]:
    return {"name": model, "version": str(version), "signature_name": signature}


def test_rows_and_columns_of_one_tensor_need_no_names(web: Running) -> None:
    rows = predict(web, {"instances": [[1, 2], [0.5, -1]]})
    assert rows.json == {"predictions": [[4.0, 8.0], [2.0, -4.0]]}
    columns = predict(web, {"inputs": [[1, 2], [0.5, -1]], "signature_name": "serving_default"})
    assert columns.json == {"outputs": [[4.0, 8.0], [2.0, -4.0]]}
    named = predict(web, {"inputs": {"x": [[1, 2]]}})
    assert named.json["outputs"] == [[4.0, 8.0]]
    assert predict(web, {"instances": [{"x": [1, 2]}]}).json["predictions"] == [[4.0, 8.0]]
    assert [one.status for one in (rows, columns, named)] == [200] * 3


def test_rows_and_columns_of_several_tensors_have_names(web: Running) -> None:
    rows = [{"count": 1, "said": "a"}, {"count": 3, "said": {"b64": "/w=="}}]
    answer = predict(web, {"instances": rows}, "named").json
    assert list(answer) == ["predictions"]
    assert answer["predictions"] == [
        {"times": 5.0, "more": False, "said": "a", "said_bytes": {"b64": "YQ=="}},
        {"times": 15.0, "more": True, "said": {"b64": "/w=="}, "said_bytes": {"b64": "/w=="}},
    ]
    columns = {"count": [1, 3], "said": ["a", "\N{SNOWMAN}"]}
    outputs = predict(web, {"inputs": columns}, "named").json["outputs"]
    assert (outputs["times"], outputs["more"]) == ([5.0, 15.0], [False, True])
    assert (outputs["said"], outputs["said_bytes"][0]) == (["a", "\N{SNOWMAN}"], {"b64": "YQ=="})


@pytest.mark.parametrize("query", ["?model_spec", "?model_spec=true", "?model_spec=1"])
def test_an_answer_says_what_made_it_in_its_body_to_who_asks_for_that(web: Running, query: str) -> None:
    for path, body, spec in (
        ("plain:predict", {"instances": [[1, 2]]}, said(4)),
        ("plain/versions/3:predict", {"inputs": [[1, 2]]}, said(3)),
        ("examples:classify", {"examples": [{"x": [1, 2.5], "bias": 1.0}]}, said(6, "examples")),
    ):
        assert call(web.rest_port, "POST", f"/v1/models/{path}{query}", body).json["model_spec"] == spec
    plain = call(web.rest_port, "POST", "/v1/models/plain:predict?model_spec=false", {"instances": [[1, 2]]})
    assert list(plain.json) == ["predictions"]


def test_a_refusal_names_the_version_that_refused(web: Running) -> None:
    for where, version in (("", "4"), ("/versions/3", "3")):
        refused = call(web.rest_port, "POST", f"/v1/models/plain{where}:predict", {"instances": [["a", 2]]})
        assert (refused.status, refused.headers["Paramsync-Version"]) == (400, version)
    for path in ("other:predict", "plain/versions/9:predict", "empty:predict"):
        assert "Paramsync-Version" not in call(web.rest_port, "POST", f"/v1/models/{path}", {}).headers


def test_numbers_come_as_they_are_and_as_short_as_they_can_be(web: Running) -> None:
    answer = predict(web, b'{"instances": [[0.1, 0.2], [NaN, Infinity], [-Infinity, 1e10], [16777216, -0.0]]}')
    assert answer.body.startswith(
        b'{"predictions": [[0.4, 0.8], [NaN, Infinity], [-Infinity, 40000000000.0], [67108864.0, -0.0]]}'
    )


def test_what_is_large_is_read_and_written_on_other_threads_and_comes_back_whole(web: Running) -> None:
    rows = np.random.default_rng(0).integers(0, 1000, [20_000, 2])
    answer = predict(web, {"instances": rows.tolist()})
    np.testing.assert_array_equal(answer.json["predictions"], rows * 4)


def test_classify_and_regress_take_examples_as_objects(web: Running) -> None:
    examples = [{"x": [1, 2.5], "bias": 1.0}, {"x": [0.5, 4]}]
    answer = call(web.rest_port, "POST", "/v1/models/examples:classify", {"examples": examples})
    assert answer.json["results"] == [[["no", 6.0], ["yes", 15.0]], [["no", 3.0], ["yes", 24.0]]]
    assert list(answer.json) == ["results"]
    body = {"examples": examples, "context": {"bias": [2.0]}, "signature_name": "regress"}
    answer = call(web.rest_port, "POST", "/v1/models/examples:regress", body)
    assert answer.json["results"] == [22.0, 29.0]
    assert answer.headers["Paramsync-Version"] == "6"
    only = call(web.rest_port, "POST", "/v1/models/examples:classify", {**body, "signature_name": "scores"})
    assert only.json["results"][0] == [["", 6.0], ["", 15.0]]
    some = call(web.rest_port, "POST", "/v1/models/examples/versions/6:predict", {"instances": [{"b64": ""}]})
    assert some.status == 400  # an example without its feature, by name


def test_status_is_what_model_service_says(web: Running) -> None:
    answer = call(web.rest_port, "GET", "/v1/models/plain")
    available = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert answer.json == {"model_version_status": [{"version": "4", **available}, {"version": "3", **available}]}
    one = call(web.rest_port, "GET", "/v1/models/plain/versions/3")
    assert one.json == {"model_version_status": [{"version": "3", **available}]}


def test_metadata_tells_the_signatures(web: Running) -> None:
    answer = call(web.rest_port, "GET", "/v1/models/named/metadata").json
    assert answer["model_spec"] == {"name": "named", "version": "5", "signature_name": ""}
    signature = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert {name: one["dtype"] for name, one in signature["inputs"].items()} == {
        "count": "DT_INT64",
        "said": "DT_STRING",
    }
    assert set(signature["outputs"]) == {"times", "more", "said", "said_bytes"}
    assert signature["inputs"]["count"]["tensor_shape"] == {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}


def test_a_head_is_answered_like_a_get_without_its_body(web: Running) -> None:
    for path in ("/v1/models/plain", "/v1/models/plain/metadata", "/metrics"):
        head, get = (call(web.rest_port, method, path) for method in ("HEAD", "GET"))
        assert (head.status, head.body, get.status) == (200, b"", 200)
        assert head.headers["Content-Type"] == get.headers["Content-Type"]


def test_many_requests_go_over_one_connection(web: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", web.rest_port, timeout=LONG)
    connection.connect()
    used = connection.sock
    for number in range(20):
        good = number % 3 > 0
        body = json.dumps({"instances": [[number, 1]]} if good else {})
        connection.request("POST", "/v1/models/plain:predict", body)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        assert (answer.status, found.get("predictions")) == ((200, [[4.0 * number, 4.0]]) if good else (400, None))
    assert connection.sock is used
    connection.close()


def test_health_is_good_once_all_models_serve_and_no_more_when_the_end_begins(
    running: Running, publisher: Publisher
) -> None:
    expected = (503, "not serving yet: m (its publisher has published nothing yet)")  # once the follower has looked

    def found() -> tuple[int, str]:
        health = call(running.rest_port, "GET", "/healthz")
        return health.status, health.error

    eventually(lambda: found() == expected, lambda: str(found()))
    publisher.publish(7)
    running.server.models.follower("m").sync(timeout=LONG)
    assert call(running.rest_port, "GET", "/healthz").status == 200
    kept = http.client.HTTPConnection("127.0.0.1", running.rest_port, timeout=LONG)
    kept.connect()
    draining = threading.Thread(target=lambda: running.drain(quiet_seconds=0.5))
    draining.start()
    eventually(lambda: call(running.rest_port, "GET", "/healthz").status == 503, lambda: "the end to begin")
    kept.request("POST", "/v1/models/m:predict", b'{"inputs": [[1, 1]]}')  # what comes is still answered, one last time
    answer = kept.getresponse()
    assert proven(json.loads(answer.read())["outputs"]["seen"], 7)
    assert answer.headers["Connection"] == "close"
    draining.join(LONG)
    with pytest.raises(OSError):  # noqa: PT011, refused or reset
        call(running.rest_port, "GET", "/healthz")
