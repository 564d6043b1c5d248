from paramsync.v1 import bundle_pb2 as _bundle_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Graph(_message.Message):
    __slots__ = ("graph_def", "parameters", "signatures", "digest", "tables", "object_graph", "checksum")
    class SignaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Signature
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Signature, _Mapping]] = ...) -> None: ...
    GRAPH_DEF_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    OBJECT_GRAPH_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    graph_def: bytes
    parameters: _containers.RepeatedCompositeFieldContainer[Parameter]
    signatures: _containers.MessageMap[str, Signature]
    digest: str
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    object_graph: bytes
    checksum: bytes
    def __init__(self, graph_def: _Optional[bytes] = ..., parameters: _Optional[_Iterable[_Union[Parameter, _Mapping]]] = ..., signatures: _Optional[_Mapping[str, Signature]] = ..., digest: _Optional[str] = ..., tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ..., object_graph: _Optional[bytes] = ..., checksum: _Optional[bytes] = ...) -> None: ...

class Parameter(_message.Message):
    __slots__ = ("name", "node", "dtype", "shape", "variable")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    node: str
    dtype: int
    shape: _bundle_pb2.TensorShape
    variable: str
    def __init__(self, name: _Optional[str] = ..., node: _Optional[str] = ..., dtype: _Optional[int] = ..., shape: _Optional[_Union[_bundle_pb2.TensorShape, _Mapping]] = ..., variable: _Optional[str] = ...) -> None: ...

class Signature(_message.Message):
    __slots__ = ("inputs", "outputs", "method_name")
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    METHOD_NAME_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[Endpoint]
    outputs: _containers.RepeatedCompositeFieldContainer[Endpoint]
    method_name: str
    def __init__(self, inputs: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., method_name: _Optional[str] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("name", "tensor", "dtype", "shape", "source")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    tensor: str
    dtype: int
    shape: _bundle_pb2.TensorShape
    source: str
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[str] = ..., dtype: _Optional[int] = ..., shape: _Optional[_Union[_bundle_pb2.TensorShape, _Mapping]] = ..., source: _Optional[str] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("node", "keys", "values")
    NODE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    node: str
    keys: bytes
    values: bytes
    def __init__(self, node: _Optional[str] = ..., keys: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...
