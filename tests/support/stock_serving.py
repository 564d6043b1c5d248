"""A client that needs only tensorflow-serving-api: makes every call of its two services.

Run as a program, with the address of a server that has model `m` of tests/support/examples.py in versions 3 and 4.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

LONG = 60.0
CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


def main(address: str, base_path: str) -> None:
    with grpc.insecure_channel(address) as channel:
        _predict(prediction_service_pb2_grpc.PredictionServiceStub(channel))
        _manage(model_service_pb2_grpc.ModelServiceStub(channel), base_path)
    assert not {one.partition(".")[0] for one in sys.modules} & {"inferencer", "paramsync"}
    sys.stdout.write("every call was answered\n")


def _predict(stub: Any) -> None:
    found = stub.Classify(_asking(classification_pb2.ClassificationRequest()), timeout=LONG)
    assert [(one.label, one.score) for one in found.result.classifications[0].classes] == [("no", 4.0), ("yes", 8.0)]
    assert found.model_spec.version.value == 4
    found = stub.Regress(_asking(regression_pb2.RegressionRequest(), "regress", version=3), timeout=LONG)
    assert ([one.value for one in found.result.regressions], found.model_spec.version.value) == ([9.0], 3)
    message = inference_pb2.MultiInferenceRequest()
    message.input.CopyFrom(_asking(regression_pb2.RegressionRequest()).input)
    for method, signature in ((REGRESS, "regress"), (CLASSIFY, "serving_default")):
        _asking(message.tasks.add(method_name=method), signature)
    found = stub.MultiInference(message, timeout=LONG)
    assert [one.WhichOneof("result") for one in found.results] == ["regression_result", "classification_result"]
    request = _asking(predict_pb2.PredictRequest(), "predict")
    request.inputs["inputs"].CopyFrom(tf.make_tensor_proto([_example().SerializeToString()]))
    request.output_filter.append("outputs")
    answer, call = stub.Predict.with_call(request, timeout=LONG)
    assert tf.make_ndarray(answer.outputs["outputs"]).tolist() == [[12.0]]
    assert ("paramsync-version", "4") in call.trailing_metadata()
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "m"
    signatures = get_model_metadata_pb2.SignatureDefMap()
    stub.GetModelMetadata(metadata, timeout=LONG).metadata["signature_def"].Unpack(signatures)
    assert signatures.signature_def["regress"].method_name == REGRESS


def _manage(stub: Any, base_path: str) -> None:
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "m"
    found = stub.GetModelStatus(status, timeout=LONG).model_version_status
    assert [(one.version, one.state) for one in found] == [(4, 30), (3, 30)]
    message = model_management_pb2.ReloadConfigRequest()
    config = message.config.model_config_list.config.add(name="m", base_path=base_path, model_platform="tensorflow")
    config.model_version_policy.specific.versions.append(3)
    config.version_labels["stable"] = 3
    assert stub.HandleReloadConfigRequest(message, timeout=LONG).status.error_code == 0


def _asking(message: Any, signature: str = "", *, version: int | None = None) -> Any:
    message.model_spec.name = "m"
    message.model_spec.signature_name = signature
    if version is not None:
        message.model_spec.version.value = version
    if "input" in message.DESCRIPTOR.fields_by_name:
        message.input.example_list.examples.append(_example())
    return message


def _example() -> Any:
    values = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0]))
    return tf.train.Example(features=tf.train.Features(feature={"x": values}))


if __name__ == "__main__":
    main(*sys.argv[1:])
