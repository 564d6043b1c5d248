"""The gRPC service tensorflow.serving.PredictionService: predictions, and the signatures of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2

from paramsync import dtypes
from paramsync.errors import InputError
from paramsync.graphs.specs import DEFAULT_SIGNATURE, Signature, TensorSpec
from paramsync.inference import batchable
from paramsync.inference.questions import Answer, Question
from paramsync.rpc import tensor_proto
from paramsync.rpc.tensor_proto import VALUE_FIELDS, extend, opening, packed

from ...serving.served import ServedModels
from ...serving.specs import check_count, latest, spec_of_answer, take_resident
from .classify import CLASSIFY, REGRESS, MultiInference, OneTask

FIELD = "signature_def"
_PREDICT = "tensorflow/serving/predict"
_TENSORFLOW = {"float32": "float", "float64": "double", "float16": "half"}  # numpy's names, where TensorFlow's differ


class PredictionService:
    """The methods of the service. GetModelMetadata runs on the event loop; any thread may call the others."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self.Predict = Predict(models)
        self.Classify = OneTask(models, CLASSIFY)
        self.Regress = OneTask(models, REGRESS)
        self.MultiInference = MultiInference(models)

    async def GetModelMetadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest, context: Any
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        return metadata(self._models, request)


class Predict:
    """The method Predict. Any thread may call it."""

    protocol = "tfs"

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def asked(self, request: predict_pb2.PredictRequest) -> tuple[str, str]:
        return request.model_spec.name, request.model_spec.signature_name or DEFAULT_SIGNATURE

    def read(self, request: predict_pb2.PredictRequest) -> list[Question]:
        spec = request.model_spec
        resident = take_resident(self._models, spec)
        signature = spec.signature_name or DEFAULT_SIGNATURE
        inputs = _plain(request, resident.graph.signatures.get(signature))
        outputs: tuple[str, ...] = ()
        fits = True
        if inputs is None or request.output_filter:
            check_count("inputs", request.inputs)
            check_count("output filter", request.output_filter)
            headers = {name: tensor_proto.header(proto, f"input {name!r}") for name, proto in request.inputs.items()}
            outputs = tuple(request.output_filter)
            fits = batchable.fits(resident.graph, signature, headers, outputs)  # before memory is spent on the inputs
            inputs = tensor_proto.to_arrays(request.inputs, "input")
        return [Question(str(spec.name), resident, signature, inputs, outputs, fits, latest(self._models, spec))]

    def write(
        self, request: predict_pb2.PredictRequest, questions: Sequence[Question], answers: Sequence[Answer]
    ) -> bytes:
        [question], [answer] = questions, answers
        parts: list[bytes] = []
        for name, array in answer.items():
            head, values = encoded(array)
            parts += _entry(name, head, len(values)), values
        return b"".join([*parts, _spec(question.model, question.signature, question.resident.version.number)])


def _plain(request: predict_pb2.PredictRequest, signature: Signature | None) -> dict[str, np.ndarray[Any, Any]] | None:
    """Return the inputs if all fit the signature and have the simple forms of `tensor_proto.plain`; otherwise None."""
    if signature is None or len(request.inputs) != len(signature.inputs):
        return None
    inputs = {}
    for name, proto in request.inputs.items():
        spec = signature.inputs.get(name)
        array = None if spec is None or spec.shape is None else tensor_proto.plain(proto, spec.dtype, spec.shape)
        if array is None:
            return None
        inputs[name] = array
    return inputs


# For each dtype whose packed field has the bytes of the array: the field's number in TensorProto, the dtype on the wire
_PACKED: Mapping[int, tuple[int, np.dtype[Any]]] = {
    1: (5, np.dtype("<f4")),
    2: (6, np.dtype("<f8")),
}


def encoded(array: npt.NDArray[Any]) -> tuple[bytes, bytes]:
    """Serialise an output as a TensorProto, in two parts, so that values are copied only once: the head, the values.

    Values are in the typed fields, as in TensorFlow Serving, except for 16-bit floats, complex numbers, and dtypes
    without a typed field.
    """
    number = dtypes.from_numpy(array.dtype)
    assert number is not None  # TensorFlow made the array
    if number in _PACKED:
        place, wire = _PACKED[number]
        values = np.asarray(array, wire).tobytes()
        return _head(number, array.shape) + opening(place, len(values)), values
    proto = tensor_pb2.TensorProto()
    field = VALUE_FIELDS.get(dtypes.name(number))
    if field == "string_val":
        extend(proto.string_val, np.asarray(array, object))
    elif field is None or field in ("half_val", "scomplex_val", "dcomplex_val"):
        proto.tensor_content = np.asarray(array).tobytes()
    else:
        extend(getattr(proto, field), np.asarray(array))
    return _head(number, array.shape), proto.SerializeToString()


@lru_cache(1024)
def _head(number: int, shape: tuple[int, ...]) -> bytes:
    """Serialise dtype and shape."""
    proto = tensor_pb2.TensorProto(dtype=number)
    proto.tensor_shape.SetInParent()  # a scalar has a shape, too
    for size in shape:
        proto.tensor_shape.dim.add().size = size
    content: bytes = proto.SerializeToString()
    return content


@lru_cache(1024)
def _entry(name: str, head: bytes, size: int) -> bytes:
    """Serialise an output of a PredictResponse up to the output's values, which take `size` bytes."""
    entry = packed(1, name.encode()) + opening(2, len(head) + size) + head
    return opening(1, len(entry) + size) + entry


@lru_cache(1024)
def _spec(model: str, signature: str, version: int) -> bytes:
    """Serialise the end of a PredictResponse: model, version and signature."""
    response = predict_pb2.PredictResponse(model_spec=spec_of_answer(model, version, signature))
    content: bytes = response.SerializeToString()
    return content


# The signatures of a version ----------------------------------------------------------------------


def metadata(
    models: ServedModels, request: get_model_metadata_pb2.GetModelMetadataRequest
) -> get_model_metadata_pb2.GetModelMetadataResponse:
    """Return the signatures of a version. Raises InputError and the errors of `take_resident`."""
    if set(request.metadata_field) != {FIELD}:
        raise InputError("metadata_field", expected=[FIELD], found=list(request.metadata_field))
    resident = take_resident(models, request.model_spec)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in resident.graph.signatures.items():
        signatures.signature_def[name].CopyFrom(_described(signature))
    response = get_model_metadata_pb2.GetModelMetadataResponse(
        model_spec=spec_of_answer(request.model_spec.name, resident.version.number, "")
    )
    response.metadata[FIELD].Pack(signatures)
    return response


def _described(signature: Signature) -> meta_graph_pb2.SignatureDef:
    described = meta_graph_pb2.SignatureDef(method_name=signature.method_name or _PREDICT)
    for specs, infos in ((signature.inputs, described.inputs), (signature.outputs, described.outputs)):
        for name, spec in specs.items():
            infos[name].CopyFrom(_info(spec))
    return described


def _info(spec: TensorSpec) -> meta_graph_pb2.TensorInfo:
    shape = tensor_shape_pb2.TensorShapeProto(unknown_rank=spec.shape is None)
    for size in spec.shape or ():
        shape.dim.add(size=-1 if size is None else size)
    dtype = types_pb2.DataType.Value(f"DT_{_TENSORFLOW.get(spec.dtype, spec.dtype).upper()}")
    return meta_graph_pb2.TensorInfo(name=spec.tensor or spec.name, dtype=dtype, tensor_shape=shape)
