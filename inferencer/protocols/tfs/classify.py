"""Classify, Regress and MultiInference: from examples to results in TensorFlow Serving's shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import Message
from tensorflow_serving.apis import classification_pb2, inference_pb2, input_pb2, model_pb2, regression_pb2

from paramsync.errors import InputError
from paramsync.graphs.specs import DEFAULT_SIGNATURE, Signature
from paramsync.inference import batchable
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident
from paramsync.rpc.tensor_proto import MAX_BYTES

from ...serving.served import ServedModels
from ...serving.specs import check_count, latest, model_name, spec_of_answer, take_resident

INPUTS, CLASSES, SCORES, OUTPUTS = "inputs", "classes", "scores", "outputs"
"""Names of tensors in classify and regress signatures."""


class OneTask:
    """The method Classify or Regress. Any thread may call it."""

    protocol = "tfs"

    def __init__(self, models: ServedModels, kind: Kind) -> None:
        self._models = models
        self._kind = kind

    def asked(self, request: Any) -> tuple[str, str]:
        return request.model_spec.name, request.model_spec.signature_name or DEFAULT_SIGNATURE

    def read(self, request: Any) -> list[Question]:
        spec = request.model_spec
        resident, serialised = take_resident(self._models, spec), examples(request.input)
        return [question_of(self._kind, resident, spec, serialised, latest(self._models, spec))]

    def write(self, request: Any, questions: Sequence[Question], answers: Sequence[Answer]) -> bytes:
        [question], [answer] = questions, answers
        response = self._kind.response(model_spec=_spec(question), result=self._kind.result(question, answer))
        return response.SerializeToString()


class MultiInference:
    """The method MultiInference: several signatures of one version on the same examples. Any thread may call it."""

    protocol = "tfs"

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def asked(self, request: inference_pb2.MultiInferenceRequest) -> tuple[str, str]:
        spec = request.tasks[0].model_spec if request.tasks else model_pb2.ModelSpec()
        return spec.name, spec.signature_name or DEFAULT_SIGNATURE

    def read(self, request: inference_pb2.MultiInferenceRequest) -> list[Question]:
        tasks = request.tasks
        if not tasks:
            raise InputError("tasks", expected="one or more", found="none")
        check_count("tasks", tasks)
        _check_tasks([task.model_spec for task in tasks])
        kinds = [_kind(task.method_name) for task in tasks]
        resident, serialised = take_resident(self._models, tasks[0].model_spec), examples(request.input)
        return [
            question_of(kind, resident, task.model_spec, serialised) for kind, task in zip(kinds, tasks, strict=True)
        ]

    def write(
        self, request: inference_pb2.MultiInferenceRequest, questions: Sequence[Question], answers: Sequence[Answer]
    ) -> bytes:
        response = inference_pb2.MultiInferenceResponse()
        for task, question, answer in zip(request.tasks, questions, answers, strict=True):
            kind = _kind(task.method_name)
            result = response.results.add(model_spec=_spec(question))
            getattr(result, kind.field).CopyFrom(kind.result(question, answer))
        content: bytes = response.SerializeToString()
        return content


def examples(request: input_pb2.Input) -> np.ndarray[Any, Any]:
    """Return the serialised examples, each behind the serialised context, because a protobuf parser merges the two.

    Raises InputError.
    """
    if request.WhichOneof("kind") == "example_list_with_context":
        listed = request.example_list_with_context.examples
        context = request.example_list_with_context.context.SerializeToString()
    else:
        listed, context = request.example_list.examples, b""
    if not listed:
        raise InputError("input", expected="one example or more", found="none")
    if len(context) * len(listed) > MAX_BYTES:
        found = f"{len(context)} bytes for each of {len(listed)} examples"
        raise InputError("input, context", expected=f"at most {MAX_BYTES} bytes in all", found=found)
    array = np.empty(len(listed), object)
    array[:] = [context + example.SerializeToString() for example in listed]
    return array


@dataclass(frozen=True, slots=True)
class Kind:
    """Classify or Regress. A signature can be used if it has the right tensors; its method name does not matter."""

    method: str
    field: str
    expected: str
    outputs: Callable[[Signature], tuple[str, ...]]  # the outputs to ask for; empty if the kind does not fit
    result: Callable[[Question, Answer], Any]
    response: type[Message]


def question_of(
    kind: Kind,
    resident: Resident,
    spec: model_pb2.ModelSpec,
    serialised: np.ndarray[Any, Any],
    latest: Callable[[], Resident] | None = None,
) -> Question:
    """Make the question to a signature about serialised examples. Raises InputError."""
    name = spec.signature_name or DEFAULT_SIGNATURE
    signature = resident.graph.signatures.get(name)
    if signature is None:  # INVALID_ARGUMENT, as in TensorFlow Serving, unlike for Predict
        there = ", ".join(resident.graph.signatures)
        raise InputError("signature", expected=f"one of {there}", found=repr(name))
    outputs = kind.outputs(signature)
    if set(signature.inputs) != {INPUTS} or not outputs:
        method = f" ({signature.method_name})" if signature.method_name else ""
        raise InputError(
            f"signature {name!r}",
            expected=f"input {INPUTS} and {kind.expected}, for {kind.method}",
            found=f"{', '.join(signature.inputs) or 'none'} and {', '.join(signature.outputs)}{method}",
        )
    inputs = {INPUTS: serialised}
    fits = batchable.fits(resident.graph, name, inputs, outputs)
    return Question(str(spec.name), resident, name, inputs, outputs, fits, latest)


def _classify_outputs(signature: Signature) -> tuple[str, ...]:
    return tuple(name for name in (CLASSES, SCORES) if name in signature.outputs) if len(signature.outputs) <= 2 else ()


def _regress_outputs(signature: Signature) -> tuple[str, ...]:
    return (OUTPUTS,) if set(signature.outputs) == {OUTPUTS} else ()


def check_classified(question: Question, answer: Answer) -> None:
    """Raise InputError unless the outputs are classes and scores of each example."""
    count = len(question.inputs[INPUTS])
    for name, array in answer.items():
        _check(name, array, "string" if name == CLASSES else "float32", array.ndim == 2 and len(array) == count, count)
    if len(widths := {array.shape[1] for array in answer.values()}) > 1:
        raise InputError(f"outputs {CLASSES} and {SCORES}", expected="one score a class", found=sorted(widths))


def check_regressed(question: Question, answer: Answer) -> None:
    """Raise InputError unless the output has one value for each example."""
    count, array = len(question.inputs[INPUTS]), answer[OUTPUTS]
    _check(OUTPUTS, array, "float32", array.shape in ((count,), (count, 1)), f"{count}] or [{count}, 1")


def _classification(question: Question, answer: Answer) -> classification_pb2.ClassificationResult:
    check_classified(question, answer)
    labels, scores = classes_and_scores(answer)
    result = classification_pb2.ClassificationResult()
    for row, row_scores in zip(labels.tolist(), scores.tolist(), strict=True):
        classes = result.classifications.add().classes
        for label, score in zip(row, row_scores, strict=True):
            classes.add(label=label.decode(errors="replace"), score=score)
    return result


def classes_and_scores(answer: Answer) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return classes and scores of each example. If the signature has only one of them, classes are "" or scores 0."""
    shape = next(iter(answer.values())).shape
    labels = answer[CLASSES] if CLASSES in answer else np.full(shape, b"", object)
    return labels, answer[SCORES] if SCORES in answer else np.zeros(shape, np.float32)


def _regression(question: Question, answer: Answer) -> regression_pb2.RegressionResult:
    check_regressed(question, answer)
    result = regression_pb2.RegressionResult()
    for value in answer[OUTPUTS].reshape(-1).tolist():
        result.regressions.add(value=value)
    return result


def _check(name: str, array: np.ndarray[Any, Any], dtype: str, fits: bool, shape: object) -> None:
    found = "string" if array.dtype.kind == "O" else str(array.dtype)
    if found != dtype or not fits:
        more = ", classes" if isinstance(shape, int) else ""
        raise InputError(f"output {name!r}", expected=f"{dtype} [{shape}{more}]", found=f"{found} {list(array.shape)}")


def _spec(question: Question) -> model_pb2.ModelSpec:
    return spec_of_answer(question.model, question.resident.version.number, question.signature)


CLASSIFY = Kind(
    "tensorflow/serving/classify",
    "classification_result",
    f"outputs {CLASSES}, {SCORES} or both",
    _classify_outputs,
    _classification,
    classification_pb2.ClassificationResponse,
)
REGRESS = Kind(
    "tensorflow/serving/regress",
    "regression_result",
    f"output {OUTPUTS}",
    _regress_outputs,
    _regression,
    regression_pb2.RegressionResponse,
)


def _kind(method: str) -> Kind:
    for kind in (CLASSIFY, REGRESS):
        if method == kind.method:
            return kind
    raise NotImplementedError(f"method_name: expected {CLASSIFY.method} or {REGRESS.method}, found {method!r}")


def _check_tasks(specs: Sequence[model_pb2.ModelSpec]) -> None:
    """Raise InputError unless all tasks name one model, the first task's version or none, and each signature once."""
    first = specs[0]
    for spec in specs:
        if model_name(spec) != first.name:
            raise InputError("tasks", expected=f"one model, {first.name!r}", found=repr(spec.name))
        if spec.WhichOneof("version_choice") and (spec.version, spec.version_label) != (
            first.version,
            first.version_label,
        ):
            raise InputError("tasks", expected="all of one version, that of the first", found="another one")
    for name, count in Counter(spec.signature_name or DEFAULT_SIGNATURE for spec in specs).items():
        if count > 1:
            raise InputError("tasks", expected=f"signature {name!r} once", found=f"{count} times")
