"""ModelInfer of KServe's protocol: turns requests into questions, and answers into responses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from paramsync.errors import InputError
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident
from paramsync.kserve import open_inference_pb2 as pb
from paramsync.rpc.tensor_proto import TensorHeader, opening

from ...serving.served import ServedModels
from ...serving.specs import check_count
from ...transport.partial_parsing import beginning
from . import tensors

SIGNATURE = "signature"
"""The parameter with which a request names a signature of the model."""

ReadArrays = Callable[[Mapping[str, TensorHeader]], dict[str, tensors.Array]]
"""A function that makes the arrays of inputs whose headers have been checked."""

_REFUSED = {  # parameters of tensors that change the answer, and so cannot be ignored
    "shared_memory_region": "shared memory is not offered; send the contents, and read them from the response",
    "classification": "classification is not offered; ask for the output itself",
}

_INFER_RESPONSE = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER
_FINAL = pb.ModelInferResponse(  # ends each response of a stream, because each request has one response
    parameters={"triton_final_response": pb.InferParameter(bool_param=True)}
).SerializeToString()


class ModelInfer:
    """The method ModelInfer. Any thread may call it."""

    protocol = "kserve"

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def asked(self, request: pb.ModelInferRequest) -> tuple[str, str]:
        named = request.parameters[SIGNATURE].string_param if SIGNATURE in request.parameters else ""
        return request.model_name, named or DEFAULT_SIGNATURE

    def read(self, request: pb.ModelInferRequest) -> list[Question]:
        resident = take_resident(self._models, request.model_name, request.model_version)
        latest = None if request.model_version else partial(take_resident, self._models, request.model_name, "")
        return [question_of(request, resident, lambda heads: tensors.arrays(request, heads), latest)]

    def write(self, request: pb.ModelInferRequest, questions: Sequence[Question], answers: Sequence[Answer]) -> bytes:
        """Write the response. Contents are raw, as Triton's clients expect, unless the request had typed contents."""
        [question], [answer] = questions, answers
        response = pb.ModelInferResponse(
            model_name=question.model, model_version=str(question.resident.version.number), id=request.id
        )
        names = question.outputs or question.resident.graph.signatures[question.signature].outputs
        raw = not any(tensor.HasField("contents") for tensor in request.inputs)
        tensors.fill(response, {name: answer[name] for name in names}, raw=raw)
        return response.SerializeToString()


def question_of(
    request: pb.ModelInferRequest,
    resident: Resident,
    arrays: ReadArrays,
    latest: Callable[[], Resident] | None = None,
) -> Question:
    """Turn a request into a question. Raises InputError, NotImplementedError, and the errors of `arrays`."""
    for what, named in (("inputs", request.inputs), ("outputs", request.outputs)):
        check_count(what, named)
        _check(named)
    signature = _signature(request.parameters)
    heads = tensors.outlines(request.inputs)
    outputs = tuple(output.name for output in request.outputs)
    resident.graph.check_inputs(signature, heads, outputs)  # before memory is spent on the inputs
    _check_outputs(resident, signature, outputs)
    return Question(request.model_name, resident, signature, arrays(heads), outputs, latest=latest)


def take_resident(models: ServedModels, model: str, version: str) -> Resident:
    """Return the version that a request names by number or label, or the serving version if it names neither.

    Raises InputError, UnknownModelError, UnknownVersionError, UnknownLabelError, NotServingError.
    """
    if not model:
        raise InputError("model_name", expected="the name of a model", found="none")
    served = models.find(model)
    return served.take(int(version)) if re.fullmatch("[0-9]{1,19}", version) else served.take(None, version)


def _signature(parameters: Mapping[str, pb.InferParameter]) -> str:
    if SIGNATURE not in parameters:
        return DEFAULT_SIGNATURE
    named = parameters[SIGNATURE]
    if named.WhichOneof("parameter_choice") != "string_param":
        found = named.WhichOneof("parameter_choice") or "none"
        raise InputError(f"parameter {SIGNATURE!r}", expected="its name as string_param", found=found)
    return named.string_param or DEFAULT_SIGNATURE


def _check(named: Iterable[Any]) -> None:
    """Raise NotImplementedError for a tensor with a parameter of _REFUSED."""
    for tensor in named:
        for parameter, why in _REFUSED.items() if tensor.parameters else ():
            if parameter in tensor.parameters:
                raise NotImplementedError(f"{tensor.name!r}: {why}")


def _check_outputs(resident: Resident, signature: str, outputs: Sequence[str]) -> None:
    """Raise InputError for an output whose dtype the protocol lacks."""
    given = resident.graph.signatures[signature].outputs
    for name in outputs or given:
        if tensors.datatype(given[name].dtype) is None:
            expected = "one of a datatype that this protocol has; ask for others by name, or use TensorFlow Serving's"
            raise InputError(f"output {name!r}", expected=expected, found=given[name].dtype)


class ModelStreamInfer:
    """Answers each request of a stream as ModelInfer does. A refused request does not end the stream."""

    def __init__(self, prediction: ModelInfer, draining: asyncio.Event) -> None:
        self.prediction = prediction
        self.draining = draining

    def answered(self, response: bytes) -> bytes:
        return opening(_INFER_RESPONSE, len(response) + len(_FINAL)) + response + _FINAL

    def refused(self, request: bytes, text: str) -> bytes:
        """Write the response to a refused request. It has the request's id if the id is one of the first fields."""
        try:
            identity = beginning(pb.ModelInferRequest, request).id
        except DecodeError:
            identity = ""
        response = pb.ModelStreamInferResponse(error_message=text, infer_response=pb.ModelInferResponse(id=identity))
        return response.SerializeToString()
