"""KServe's second protocol by HTTP: its paths, its JSON, and tensors as bytes after the JSON.

Each path stands for a call of the gRPC service, whose answer is written as JSON; only `infer` has its own form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from google.protobuf import message_factory
from google.protobuf.message import Message

from paramsync.errors import InputError, RequestError
from paramsync.graphs.specs import TensorSpec
from paramsync.inference.questions import Answer, Question
from paramsync.inference.resident import Resident
from paramsync.kserve import open_inference_pb2 as pb
from paramsync.rpc.tensor_proto import TensorHeader

from ...serving.served import ServedModels
from ...serving.specs import check_count
from ..json_arrays import Array, read, to_json, write_lists
from ..json_reader import Body, kind, parsed_bytes, text
from . import tensors
from .infer import SIGNATURE, question_of, take_resident

JSON_LENGTH = "Inference-Header-Content-Length"
"""The header with the number of bytes of the body that are JSON; tensors follow."""

_BINARY = "binary_data"
_ALL_BINARY = "binary_data_output"
_SIZE = "binary_data_size"
_SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE = _SERVICE.full_name
_MODEL = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_PATHS = [
    (method, re.compile(path, re.ASCII), call)
    for method, path, call in (
        ("GET", r"/v2/?", "ServerMetadata"),
        ("GET", r"/v2/health/live", "ServerLive"),
        ("GET", r"/v2/health/ready", "ServerReady"),
        ("GET", r"/v2/models/stats", "ModelStatistics"),
        ("GET", rf"{_MODEL}/?", "ModelMetadata"),
        ("GET", rf"{_MODEL}/ready", "ModelReady"),
        ("GET", rf"{_MODEL}/stats", "ModelStatistics"),
        ("GET", rf"{_MODEL}/config", "ModelConfig"),
        ("POST", rf"{_MODEL}/infer", "ModelInfer"),
        ("POST", r"/v2/repository/index", "RepositoryIndex"),
        ("POST", r"/v2/repository/models/(?P<model_name>[^/]+)/load", "RepositoryModelLoad"),
        ("POST", r"/v2/repository/models/(?P<model_name>[^/]+)/unload", "RepositoryModelUnload"),
        ("(GET|POST)", r"/v2/(system|cuda)sharedmemory(/.*)?", "SystemSharedMemoryStatus"),
        ("(GET|POST)", r"/v2(/models/[^/]+)?/trace/setting", "TraceSetting"),
        ("(GET|POST)", r"/v2/logging", "LogSettings"),
    )
]


def request_of(method: str, path: str) -> tuple[str, Any]:
    """Return the name of the gRPC call for a path, and the call's request. Raises RequestError for an unknown path."""
    for of, pattern, call in _PATHS:
        if re.fullmatch(of, method) and (match := pattern.fullmatch(path)):
            message = message_factory.GetMessageClass(_SERVICE.methods_by_name[call].input_type)()
            for field, part in match.groupdict().items():
                named = f"model_{field}" if call == "ModelInfer" else field
                # Messages of unimplemented calls have no fields.
                if part is not None and named in message.DESCRIPTOR.fields_by_name:
                    setattr(message, named, unquote(part))
            return call, message
    raise RequestError(f"request: expected a path of KServe's protocol, found {method} {path[:200]}")


def add_body(message: Message, content: bytes) -> None:
    """Add the body of a repository call to its message. The body may be empty. Raises InputError, RequestError."""
    fields = Body(content).fields if content else {}
    if isinstance(message, pb.RepositoryIndexRequest):
        message.ready = fields.get("ready") is True
    elif isinstance(message, pb.RepositoryModelLoadRequest):
        for name in _object("parameters", fields.get("parameters")):
            message.parameters[text("the name of a parameter", name)].string_param = ""


def body_of(message: Message) -> bytes:
    """Write the answer of a call as JSON."""
    if isinstance(message, pb.RepositoryIndexResponse):
        return to_json(_plain(message)["models"]) + b"\n"
    return to_json(_plain(message)) + b"\n"


def _plain(message: Any) -> Any:
    """Turn a message into JSON values. protobuf's own conversion would write 64-bit numbers as strings."""
    if isinstance(message, str | int | float):
        return message
    if isinstance(message, Message):
        return {field.name: _plain(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}
    return [_plain(element) for element in message]


class Infer:
    """One request to `infer`. Any thread may call its methods."""

    protocol = "kserve_http"
    route = "/v2/models/{model}/infer"

    def __init__(self, models: ServedModels, request: pb.ModelInferRequest, json_length: str | None) -> None:
        """`json_length` is the value of the header JSON_LENGTH. Raises InputError."""
        if json_length is not None and not re.fullmatch("[0-9]{1,18}", json_length):
            raise InputError(JSON_LENGTH, expected="how many bytes of the body are JSON", found=repr(json_length))
        self.model = request.model_name
        self._models = models
        self._request = request
        self._json_length = None if json_length is None else int(json_length)
        self._outputs: dict[str, bool] = {}  # the requested outputs: True for raw bytes
        self._binary = False

    def take(self) -> Resident:
        """Return the version that shall answer. Raises InputError, NotServingError."""
        return take_resident(self._models, self._request.model_name, self._request.model_version)

    def bytes_to_read(self, content: bytes) -> int:
        """Estimate the most bytes of memory that `read` takes in addition to the content."""
        end = len(content) if self._json_length is None else min(self._json_length, len(content))
        return parsed_bytes(content[:end]) + len(content) - end

    def read(self, resident: Resident, content: bytes) -> Question:
        """Read the question from a body. Raises RequestError, NotImplementedError."""
        end = len(content) if self._json_length is None else self._json_length
        if end > len(content):
            raise InputError(JSON_LENGTH, expected=f"at most the {len(content)} bytes of the body", found=end)
        body, request = Body(content[:end]), self._request
        request.id = body.text("id")
        parameters = _object("parameters", body.fields.get("parameters"))
        if SIGNATURE in parameters:
            request.parameters[SIGNATURE].string_param = text(f"parameter {SIGNATURE!r}", parameters[SIGNATURE])
        self._binary = parameters.get(_ALL_BINARY) is True
        inputs = _objects("inputs", body.listed("inputs"))
        for tensor in inputs:
            name = text("the name of an input", tensor.get("name"))
            added = request.inputs.add(name=name, datatype=text(f"input {name!r}, datatype", tensor.get("datatype")))
            added.shape.extend(_shape(f"input {name!r}, shape", tensor.get("shape")))
            _add_parameters(added, tensor)
        for tensor in _objects("outputs", body.fields.get("outputs", [])):
            name = text("the name of an output", tensor.get("name"))
            given = _add_parameters(request.outputs.add(name=name), tensor)
            self._outputs[name] = given.get(_BINARY, self._binary) is True
        latest = None if request.model_version else self.take
        rest = memoryview(content)[end:]
        return question_of(request, resident, lambda heads: _arrays(heads, inputs, body, rest), latest)

    def write(self, question: Question, answer: Answer) -> tuple[bytes, Mapping[str, str]]:
        """Return the body and its headers. Raises InputError for values that JSON lacks."""
        version = str(question.resident.version.number)
        head = {"model_name": question.model, "model_version": version}
        if self._request.id:
            head["id"] = self._request.id
        parts, behind = [to_json(head)[:-1], b', "outputs": ['], []
        for name in self._outputs or question.resident.graph.signatures[question.signature].outputs:
            array = answer[name]
            described = {"name": name, "datatype": tensors.datatype_of(array), "shape": list(array.shape)}
            parts.append(b", " if len(parts) > 2 else b"")
            if self._outputs.get(name, self._binary):
                behind.append(tensors.to_raw(array))
                parts.append(to_json({**described, "parameters": {_SIZE: len(behind[-1])}}))
            else:
                parts += [to_json(described)[:-1], b', "data": ', *write_lists(name, array.reshape(-1)), b"}"]
        text = b"".join((*parts, b"]}"))
        if not behind:
            return text, {}
        return b"".join((text, *behind)), {JSON_LENGTH: str(len(text)), "Content-Type": "application/octet-stream"}


def _arrays(
    heads: Mapping[str, TensorHeader], inputs: Iterable[dict[str, Any]], body: Body, behind: memoryview
) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    at = 0
    for (name, head), tensor in zip(heads.items(), inputs, strict=True):
        length = _object(str(head), tensor.get("parameters")).get(_SIZE)
        if (length is None) == ("data" not in tensor):
            found = "neither" if length is None else "both"
            raise InputError(str(head), expected=f"either data or {_SIZE}", found=found)
        if length is None:
            dtype = "string" if head.dtype == object else head.dtype.name
            array = read(name, tensor["data"], TensorSpec(name, dtype, None), body)
            if array.size != head.count:
                raise InputError(str(head), expected=f"{head.count} values in data", found=array.size)
        else:
            if type(length) is not int or not 0 <= length <= len(behind) - at:
                expected = f"at most the {len(behind) - at} bytes that are left"
                raise InputError(f"{head}, {_SIZE}", expected=expected, found=length)
            array = tensors.of_raw(head, bytes(behind[at : at + length]))  # copied, so that it is aligned
            at += length
        arrays[name] = array.reshape(head.shape)
    if at < len(behind):
        raise InputError("body", expected=f"{at} bytes of tensors", found=f"{len(behind)} behind the JSON")
    return arrays


def _objects(what: str, values: Any) -> list[dict[str, Any]]:
    """Return a value that must be a list of objects. Raises InputError."""
    if not isinstance(values, list):
        raise InputError(what, expected="a list of objects", found=kind(values))
    check_count(what, values)
    for value in values:
        if not isinstance(value, dict):
            raise InputError(what, expected="a list of objects", found=f"{kind(value)} in it")
    return values


def _object(what: str, value: Any) -> dict[str, Any]:
    """Return a value that must be an object. None counts as an empty object. Raises InputError."""
    if value is not None and not isinstance(value, dict):
        raise InputError(f"{what}, parameters", expected="an object", found=kind(value))
    return value or {}


def _shape(what: str, value: Any) -> list[int]:
    if not isinstance(value, list):
        raise InputError(what, expected="a list of sizes", found=kind(value))
    if not all(type(size) is int and 0 <= size < 1 << 63 for size in value):
        raise InputError(what, expected="a list of sizes", found="something else")
    return value


def _add_parameters(tensor: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Add the parameters to the message, so that HTTP refuses the same parameters as gRPC. Returns the parameters."""
    parameters = _object(f"{tensor.name!r}", given.get("parameters"))
    for name in parameters:
        tensor.parameters[text("the name of a parameter", name)].string_param = ""
    return parameters
