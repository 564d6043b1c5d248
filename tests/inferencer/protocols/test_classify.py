"""Classify, Regress and MultiInference as stock clients call them, on a model whose parameter is the version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    inference_pb2,
    input_pb2,
    predict_pb2,
    regression_pb2,
)

from paramsync.graphs.graph import Graph
from tests.support.examples import LABELS, Store, example
from tests.support.running import LONG, Running, refused, synced

Code = grpc.StatusCode
CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of model `m`, in versions 3 and 4."""
    folder = tmp_path_factory.mktemp("examples")
    with Store.make(folder / "m", folder / "saved") as store:
        running = Running(folder / "m")
        for number in (3, 4):
            store.publish(number)
            synced(running)
        yield running
        running.close()


TWO = (example(1.0, 2.0), example(0.5, 4.0, bias=1.0))


def ask(kind: Any, *listed: Any, signature: str = "", version: int | None = None, context: Any = None) -> Any:
    message = kind()
    message.model_spec.name = "m"
    message.model_spec.signature_name = signature
    if version is not None:
        message.model_spec.version.value = version
    if context is None:
        message.input.example_list.examples.extend(listed)
    else:
        message.input.example_list_with_context.examples.extend(listed)
        message.input.example_list_with_context.context.CopyFrom(context)
    return message


def classify(*listed: Any, **options: Any) -> Any:
    return ask(classification_pb2.ClassificationRequest, *listed, **options)


def regress(*listed: Any, signature: str = "regress", **options: Any) -> Any:
    return ask(regression_pb2.RegressionRequest, *listed, signature=signature, **options)


def pairs(result: Any) -> list[list[tuple[str, float]]]:
    return [[(one.label, one.score) for one in row.classes] for row in result.classifications]


def test_classify_gives_classes_with_scores_and_names_the_version(examples: Running) -> None:
    answer, call = examples.prediction_service.Classify.with_call(classify(*TWO), timeout=LONG)
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 4, "serving_default")
    assert pairs(answer.result) == [[("no", 4.0), ("yes", 8.0)], [("no", 2.0), ("yes", 16.0)]]
    assert ("paramsync-version", "4") in [(one.key, one.value) for one in call.trailing_metadata()]


def test_classes_or_scores_may_be_missing(examples: Running) -> None:
    scores = examples.prediction_service.Classify(classify(TWO[0], signature="scores"), timeout=LONG)
    labels = examples.prediction_service.Classify(classify(TWO[0], signature="labels"), timeout=LONG)
    assert pairs(scores.result) == [[("", 4.0), ("", 8.0)]]
    assert pairs(labels.result) == [[(name, 0.0) for name in LABELS]]


@pytest.mark.parametrize("signature", ["regress", "flat"])
def test_regress_gives_a_value_for_each_example(examples: Running, signature: str) -> None:
    answer = examples.prediction_service.Regress(regress(*TWO, signature=signature), timeout=LONG)
    assert [one.value for one in answer.result.regressions] == [12.0, 19.0]
    assert (answer.model_spec.version.value, answer.model_spec.signature_name) == (4, signature)


def test_what_examples_have_in_common_may_be_said_once(examples: Running) -> None:
    message = regress(example(1.0, 2.0), example(0.0, 1.0, bias=5.0), context=example(bias=7.0))
    answer = examples.prediction_service.Regress(message, timeout=LONG)
    assert [one.value for one in answer.result.regressions] == [12.0 + 7.0, 4.0 + 5.0]  # its own counts more


def test_a_signature_that_says_predict_but_has_the_right_tensors_can_be_asked(examples: Running) -> None:
    """Which is all that SavedModels of TensorFlow 2 ever say."""
    answer = examples.prediction_service.Regress(regress(TWO[0], signature="predict"), timeout=LONG)
    assert [one.value for one in answer.result.regressions] == [12.0]


def multi(*tasks: tuple[str, str], model: str = "m", versions: tuple[int, ...] = ()) -> Any:
    message = inference_pb2.MultiInferenceRequest(input=input_pb2.Input())
    message.input.example_list.examples.extend(TWO)
    for at, (method, signature) in enumerate(tasks):
        task = message.tasks.add(method_name=method)
        task.model_spec.name = model
        task.model_spec.signature_name = signature
        if at < len(versions):
            task.model_spec.version.value = versions[at]
    return message


@pytest.mark.parametrize("version", [3, 4])
def test_multi_inference_asks_one_version_for_several_results(examples: Running, version: int) -> None:
    message = multi((REGRESS, "regress"), (CLASSIFY, ""), versions=(version,))
    answer = examples.prediction_service.MultiInference(message, timeout=LONG)
    first, second = answer.results
    assert [one.value for one in first.regression_result.regressions] == [version * 3.0, version * 4.5 + 1.0]
    assert pairs(second.classification_result)[0] == [("no", version * 1.0), ("yes", version * 2.0)]
    names = [(one.model_spec.signature_name, one.model_spec.version.value) for one in answer.results]
    assert names == [("regress", version), ("serving_default", version)]


def test_method_names_are_told_as_the_saved_model_said_them(examples: Running) -> None:
    message = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    message.model_spec.name = "m"
    answer = examples.prediction_service.GetModelMetadata(message, timeout=LONG)
    found = get_model_metadata_pb2.SignatureDefMap()
    answer.metadata["signature_def"].Unpack(found)
    methods = {name: found.signature_def[name].method_name for name in ("serving_default", "regress", "predict")}
    assert methods == {"serving_default": CLASSIFY, "regress": REGRESS, "predict": "tensorflow/serving/predict"}


def test_method_names_are_kept_in_graph_files_and_are_no_part_of_the_digest(examples: Running) -> None:
    graph = examples.graph()
    assert Graph.from_bytes(graph.to_bytes()).signatures["regress"].method_name == REGRESS
    message = graph.message()
    for signature in message.signatures.values():
        signature.method_name = ""
    assert Graph(message).digest == graph.digest


INVALID = Code.INVALID_ARGUMENT
CONTEXT = example(0.0, 0.0, **{f"feature {at}": 1.0 for at in range(3000)})


@pytest.mark.parametrize(
    ("method", "message", "code", "text"),
    [
        ("Classify", classification_pb2.ClassificationRequest(), INVALID, "model_spec: expected the name of a model"),
        ("Classify", classify(TWO[0], version=9), Code.NOT_FOUND, "version 9 of model 'm' is not there"),
        ("Classify", classify(), INVALID, "input: expected one example or more, found none"),
        ("Classify", classify(TWO[0], signature="none"), INVALID, "signature: expected one of flat, labels"),
        ("Classify", classify(TWO[0], signature="regress"), INVALID, "outputs classes, scores or both"),
        ("Classify", classify(TWO[0], signature="unequal"), INVALID, "expected one score a class, found [1, 2]"),
        ("Classify", classify(TWO[0], signature="numbers"), INVALID, "expected string [1, classes], found float32 [1"),
        ("Classify", classify(example(1.0)), INVALID, "Key: x"),
        ("Classify", classify(example(bias=1.0)), INVALID, "Feature: x (data type: float) is required"),
        ("Regress", regress(TWO[0], signature=""), INVALID, f"classes, scores ({CLASSIFY})"),
        ("Regress", regress(TWO[0], signature="wide"), INVALID, "expected float32 [1] or [1, 1], found float32 [1, 2]"),
        ("Regress", regress(*TWO, signature="one"), INVALID, "expected float32 [2] or [2, 1], found float32 [1]"),
        ("Regress", regress(*[example()] * 5000, context=CONTEXT), INVALID, "input, context: expected at most"),
        ("MultiInference", multi(), INVALID, "tasks: expected one or more, found none"),
        ("MultiInference", multi((REGRESS, "regress"), model=""), INVALID, "expected the name of a model"),
        ("MultiInference", multi((REGRESS, "flat"), (REGRESS, "flat")), INVALID, "'flat' once, found 2 times"),
        ("MultiInference", multi((REGRESS, "flat"), (CLASSIFY, ""), versions=(4, 3)), INVALID, "all of one version"),
        (
            "MultiInference",
            multi(("a/b", "flat")),
            Code.UNIMPLEMENTED,
            f"expected {CLASSIFY} or {REGRESS}, found 'a/b'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_request_gets_the_code_of_tensorflow_serving_and_both_sides(
    examples: Running, method: str, message: Any, code: grpc.StatusCode, text: str
) -> None:
    found, details = refused(getattr(examples.prediction_service, method), message)
    assert found is code, details
    assert text in details
    assert pairs(examples.prediction_service.Classify(classify(TWO[0]), timeout=LONG).result)[0][0] == ("no", 4.0)


def test_examples_that_are_no_text_are_the_callers_fault(examples: Running, caplog: pytest.LogCaptureFixture) -> None:
    message = predict_pb2.PredictRequest()
    message.model_spec.name, message.model_spec.signature_name = "m", "predict"
    message.inputs["inputs"].CopyFrom(tf.make_tensor_proto([b"\x0a\x08\x12\xe6\xff"]))
    code, text = refused(examples.prediction_service.Predict, message)
    assert code is Code.INVALID_ARGUMENT
    assert "\\xe6" in text
    assert not caplog.records
