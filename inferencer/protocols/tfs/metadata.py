"""GetModelMetadata: what a version expects and gives, by signature."""

from __future__ import annotations

from collections.abc import Collection

from tensorflow.core.framework import tensor_shape_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import get_model_metadata_pb2

from paramsync.errors import InputError
from paramsync.graphs.specs import Signature, TensorSpec

from ...serving.served import Models
from ...serving.specs import answered, taken

FIELD = "signature_def"
PREDICT = "tensorflow/serving/predict"
_TENSORFLOW = {"float32": "float", "float64": "double", "float16": "half"}  # where numpy's word is another one


def metadata(
    models: Models, request: get_model_metadata_pb2.GetModelMetadataRequest
) -> get_model_metadata_pb2.GetModelMetadataResponse:
    """Raises InputError, and what `taken` raises."""
    check_fields(request.metadata_field)
    one = taken(models, request.model_spec)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in one.graph.signatures.items():
        signatures.signature_def[name].CopyFrom(_described(signature))
    response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=answered(request.model_spec.name, one, ""))
    response.metadata[FIELD].Pack(signatures)
    return response


def check_fields(fields: Collection[str]) -> None:
    if set(fields) != {FIELD}:
        raise InputError("metadata_field", expected=[FIELD], found=list(fields))


def _described(signature: Signature) -> meta_graph_pb2.SignatureDef:
    described = meta_graph_pb2.SignatureDef(method_name=signature.method_name or PREDICT)
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
