"""tensorflow.serving.PredictionService: predictions and what a model expects, translated."""

from __future__ import annotations

from typing import Any

from tensorflow.core.framework import tensor_shape_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, model_pb2, predict_pb2

from inferencer.replica import Resident
from inferencer.services.models import Models
from inferencer.services.tensors import encode
from paramsync import wire
from paramsync.errors import InputError
from paramsync.graphs.graph import DEFAULT_SIGNATURE, Signature, TensorSpec

_METADATA = "signature_def"
_METHOD = "tensorflow/serving/predict"


class PredictionService:
    """Predict is called on threads, with all that it takes; everything else lives on one event loop."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def Predict(self, request: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
        model, version = asked(request.model_spec)
        one = self._models.find(model).replica.take(version)
        signature = request.model_spec.signature_name or DEFAULT_SIGNATURE
        outlines = {name: wire.outline(proto, f"input {name!r}") for name, proto in request.inputs.items()}
        one.graph.check_inputs(signature, outlines, request.output_filter)  # before memory is spent on any of them
        outputs = one.predict(
            wire.to_arrays(request.inputs, "input"), signature=signature, outputs=request.output_filter
        )
        response = predict_pb2.PredictResponse(model_spec=_spec(model, one, signature))
        for name, tensor in outputs.items():
            response.outputs[name].CopyFrom(encode(tensor))
        return response

    async def GetModelMetadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest, context: Any
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        if list(request.metadata_field) != [_METADATA]:
            raise InputError("metadata_field", expected=[_METADATA], found=list(request.metadata_field))
        model, version = asked(request.model_spec)
        one = self._models.find(model).replica.take(version)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        for name, signature in one.graph.signatures.items():
            signatures.signature_def[name].CopyFrom(_described(signature))
        response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=_spec(model, one, ""))
        response.metadata[_METADATA].Pack(signatures)
        return response

    async def Classify(self, request: Any, context: Any) -> Any:
        raise NotImplementedError("Classify is not offered; use Predict")

    async def Regress(self, request: Any, context: Any) -> Any:
        raise NotImplementedError("Regress is not offered; use Predict")

    async def MultiInference(self, request: Any, context: Any) -> Any:
        raise NotImplementedError("MultiInference is not offered; use Predict")


def asked(spec: model_pb2.ModelSpec) -> tuple[str, int | None]:
    """The model a request names, and the version if it names one. Raises InputError."""
    if not spec.name:
        raise InputError("model_spec", expected="the name of a model", found="none")
    if spec.version_label:
        raise InputError("model_spec", expected="a version number or none", found=f"label {spec.version_label!r}")
    return spec.name, spec.version.value if spec.HasField("version") else None


def _spec(model: str, one: Resident, signature: str) -> model_pb2.ModelSpec:
    spec = model_pb2.ModelSpec(name=model, signature_name=signature)
    spec.version.value = one.version.number
    return spec


def _described(signature: Signature) -> meta_graph_pb2.SignatureDef:
    described = meta_graph_pb2.SignatureDef(method_name=_METHOD)
    for specs, infos in ((signature.inputs, described.inputs), (signature.outputs, described.outputs)):
        for name, spec in specs.items():
            infos[name].CopyFrom(_info(spec))
    return described


def _info(spec: TensorSpec) -> meta_graph_pb2.TensorInfo:
    shape = tensor_shape_pb2.TensorShapeProto(unknown_rank=spec.shape is None)
    for size in spec.shape or ():
        shape.dim.add(size=-1 if size is None else size)
    dtype = types_pb2.DataType.Value(f"DT_{_TENSORFLOW.get(spec.dtype, spec.dtype).upper()}")
    return meta_graph_pb2.TensorInfo(name=spec.name, dtype=dtype, tensor_shape=shape)


_TENSORFLOW = {"float32": "float", "float64": "double", "float16": "half"}  # where numpy's word is another one
