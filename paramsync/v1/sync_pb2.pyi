from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Version(_message.Message):
    __slots__ = ("number", "step", "prefix", "graph", "step_done_at", "snapshot_at", "committed_at", "bytes", "metrics", "bytes_written", "checksum", "finite", "precision", "serve_at")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    STEP_DONE_AT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    FINITE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    SERVE_AT_FIELD_NUMBER: _ClassVar[int]
    number: int
    step: int
    prefix: str
    graph: str
    step_done_at: float
    snapshot_at: float
    committed_at: float
    bytes: int
    metrics: _containers.ScalarMap[str, float]
    bytes_written: int
    checksum: str
    finite: bool
    precision: str
    serve_at: float
    def __init__(self, number: _Optional[int] = ..., step: _Optional[int] = ..., prefix: _Optional[str] = ..., graph: _Optional[str] = ..., step_done_at: _Optional[float] = ..., snapshot_at: _Optional[float] = ..., committed_at: _Optional[float] = ..., bytes: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., bytes_written: _Optional[int] = ..., checksum: _Optional[str] = ..., finite: bool = ..., precision: _Optional[str] = ..., serve_at: _Optional[float] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("model", "load")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    model: str
    load: bool
    def __init__(self, model: _Optional[str] = ..., load: bool = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("models", "workers", "loads", "waiting")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    loads: _containers.RepeatedCompositeFieldContainer[ModelLoad]
    waiting: int
    def __init__(self, models: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., loads: _Optional[_Iterable[_Union[ModelLoad, _Mapping]]] = ..., waiting: _Optional[int] = ...) -> None: ...

class ModelLoad(_message.Message):
    __slots__ = ("model", "answered", "refused", "seconds", "bounds", "latencies")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    LATENCIES_FIELD_NUMBER: _ClassVar[int]
    model: str
    answered: int
    refused: int
    seconds: float
    bounds: _containers.RepeatedScalarFieldContainer[float]
    latencies: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., answered: _Optional[int] = ..., refused: _Optional[int] = ..., seconds: _Optional[float] = ..., bounds: _Optional[_Iterable[float]] = ..., latencies: _Optional[_Iterable[int]] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("number", "state", "since", "pid", "resident_bytes", "private_bytes", "restarts")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[WorkerStatus.State]
        STARTING: _ClassVar[WorkerStatus.State]
        ANSWERING: _ClassVar[WorkerStatus.State]
        LEAVING: _ClassVar[WorkerStatus.State]
        ENDED: _ClassVar[WorkerStatus.State]
    STATE_UNSPECIFIED: WorkerStatus.State
    STARTING: WorkerStatus.State
    ANSWERING: WorkerStatus.State
    LEAVING: WorkerStatus.State
    ENDED: WorkerStatus.State
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    state: WorkerStatus.State
    since: float
    pid: int
    resident_bytes: int
    private_bytes: int
    restarts: int
    def __init__(self, number: _Optional[int] = ..., state: _Optional[_Union[WorkerStatus.State, str]] = ..., since: _Optional[float] = ..., pid: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., private_bytes: _Optional[int] = ..., restarts: _Optional[int] = ...) -> None: ...

class ModelStatus(_message.Message):
    __slots__ = ("model", "store", "state", "published", "serving", "resident", "quarantined", "lag_seconds", "lag_steps", "pinned", "reason", "swaps", "restore_seconds", "labels", "restores", "quarantines", "parts", "serving_age_seconds", "since_publication_seconds", "not_served", "signed_by", "lag_versions", "publisher", "publisher_since", "rollback_to", "rollback_served", "bucket", "next", "next_at", "swap_skew_seconds")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[ModelStatus.State]
        WAITING: _ClassVar[ModelStatus.State]
        SERVING: _ClassVar[ModelStatus.State]
        DRAINING: _ClassVar[ModelStatus.State]
        DAMAGED: _ClassVar[ModelStatus.State]
    STATE_UNSPECIFIED: ModelStatus.State
    WAITING: ModelStatus.State
    SERVING: ModelStatus.State
    DRAINING: ModelStatus.State
    DAMAGED: ModelStatus.State
    class Publisher(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PUBLISHER_UNSPECIFIED: _ClassVar[ModelStatus.Publisher]
        TRAINING: _ClassVar[ModelStatus.Publisher]
        FINISHED: _ClassVar[ModelStatus.Publisher]
        DIED: _ClassVar[ModelStatus.Publisher]
    PUBLISHER_UNSPECIFIED: ModelStatus.Publisher
    TRAINING: ModelStatus.Publisher
    FINISHED: ModelStatus.Publisher
    DIED: ModelStatus.Publisher
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class NotServedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LAG_STEPS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SWAPS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    RESTORES_FIELD_NUMBER: _ClassVar[int]
    QUARANTINES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SERVING_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SINCE_PUBLICATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NOT_SERVED_FIELD_NUMBER: _ClassVar[int]
    SIGNED_BY_FIELD_NUMBER: _ClassVar[int]
    LAG_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_SINCE_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_TO_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_SERVED_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_FIELD_NUMBER: _ClassVar[int]
    SWAP_SKEW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    store: str
    state: ModelStatus.State
    published: Version
    serving: Version
    resident: _containers.RepeatedScalarFieldContainer[int]
    quarantined: _containers.RepeatedCompositeFieldContainer[Quarantine]
    lag_seconds: float
    lag_steps: int
    pinned: int
    reason: str
    swaps: int
    restore_seconds: float
    labels: _containers.ScalarMap[str, int]
    restores: int
    quarantines: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    serving_age_seconds: float
    since_publication_seconds: float
    not_served: _containers.ScalarMap[str, str]
    signed_by: str
    lag_versions: int
    publisher: ModelStatus.Publisher
    publisher_since: float
    rollback_to: int
    rollback_served: bool
    bucket: Bucket
    next: int
    next_at: float
    swap_skew_seconds: float
    def __init__(self, model: _Optional[str] = ..., store: _Optional[str] = ..., state: _Optional[_Union[ModelStatus.State, str]] = ..., published: _Optional[_Union[Version, _Mapping]] = ..., serving: _Optional[_Union[Version, _Mapping]] = ..., resident: _Optional[_Iterable[int]] = ..., quarantined: _Optional[_Iterable[_Union[Quarantine, _Mapping]]] = ..., lag_seconds: _Optional[float] = ..., lag_steps: _Optional[int] = ..., pinned: _Optional[int] = ..., reason: _Optional[str] = ..., swaps: _Optional[int] = ..., restore_seconds: _Optional[float] = ..., labels: _Optional[_Mapping[str, int]] = ..., restores: _Optional[int] = ..., quarantines: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., serving_age_seconds: _Optional[float] = ..., since_publication_seconds: _Optional[float] = ..., not_served: _Optional[_Mapping[str, str]] = ..., signed_by: _Optional[str] = ..., lag_versions: _Optional[int] = ..., publisher: _Optional[_Union[ModelStatus.Publisher, str]] = ..., publisher_since: _Optional[float] = ..., rollback_to: _Optional[int] = ..., rollback_served: bool = ..., bucket: _Optional[_Union[Bucket, _Mapping]] = ..., next: _Optional[int] = ..., next_at: _Optional[float] = ..., swap_skew_seconds: _Optional[float] = ...) -> None: ...

class Bucket(_message.Message):
    __slots__ = ("address", "reason", "over", "answered_at", "newest", "behind", "waiting_since", "copied", "whole_bytes", "delta_bytes", "failures", "addresses")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_AT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    WAITING_SINCE_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    WHOLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DELTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    address: str
    reason: str
    over: bool
    answered_at: float
    newest: int
    behind: int
    waiting_since: float
    copied: Copied
    whole_bytes: int
    delta_bytes: int
    failures: int
    addresses: str
    def __init__(self, address: _Optional[str] = ..., reason: _Optional[str] = ..., over: bool = ..., answered_at: _Optional[float] = ..., newest: _Optional[int] = ..., behind: _Optional[int] = ..., waiting_since: _Optional[float] = ..., copied: _Optional[_Union[Copied, _Mapping]] = ..., whole_bytes: _Optional[int] = ..., delta_bytes: _Optional[int] = ..., failures: _Optional[int] = ..., addresses: _Optional[str] = ...) -> None: ...

class Copied(_message.Message):
    __slots__ = ("number", "step_done_at", "published_at", "in_bucket_at", "here_at", "served_at", "way", "deltas", "bytes", "size", "seconds")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_DONE_AT_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_FIELD_NUMBER: _ClassVar[int]
    IN_BUCKET_AT_FIELD_NUMBER: _ClassVar[int]
    HERE_AT_FIELD_NUMBER: _ClassVar[int]
    SERVED_AT_FIELD_NUMBER: _ClassVar[int]
    WAY_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    step_done_at: float
    published_at: float
    in_bucket_at: float
    here_at: float
    served_at: float
    way: str
    deltas: int
    bytes: int
    size: int
    seconds: float
    def __init__(self, number: _Optional[int] = ..., step_done_at: _Optional[float] = ..., published_at: _Optional[float] = ..., in_bucket_at: _Optional[float] = ..., here_at: _Optional[float] = ..., served_at: _Optional[float] = ..., way: _Optional[str] = ..., deltas: _Optional[int] = ..., bytes: _Optional[int] = ..., size: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: Version
    def __init__(self, model: _Optional[str] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class Quarantine(_message.Message):
    __slots__ = ("number", "reason", "since")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    number: int
    reason: str
    since: float
    def __init__(self, number: _Optional[int] = ..., reason: _Optional[str] = ..., since: _Optional[float] = ...) -> None: ...

class SyncRequest(_message.Message):
    __slots__ = ("model", "version", "fresh", "serve_at")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    SERVE_AT_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    fresh: bool
    serve_at: float
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., fresh: bool = ..., serve_at: _Optional[float] = ...) -> None: ...

class SyncProgress(_message.Message):
    __slots__ = ("phase", "version", "status", "bytes_done", "bytes_total", "variables_done", "variables_total")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PHASE_UNSPECIFIED: _ClassVar[SyncProgress.Phase]
        LOOKING: _ClassVar[SyncProgress.Phase]
        RESTORING: _ClassVar[SyncProgress.Phase]
        DONE: _ClassVar[SyncProgress.Phase]
        PUBLISHING: _ClassVar[SyncProgress.Phase]
        VERIFYING: _ClassVar[SyncProgress.Phase]
        WARMING: _ClassVar[SyncProgress.Phase]
    PHASE_UNSPECIFIED: SyncProgress.Phase
    LOOKING: SyncProgress.Phase
    RESTORING: SyncProgress.Phase
    DONE: SyncProgress.Phase
    PUBLISHING: SyncProgress.Phase
    VERIFYING: SyncProgress.Phase
    WARMING: SyncProgress.Phase
    PHASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_DONE_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    phase: SyncProgress.Phase
    version: int
    status: ModelStatus
    bytes_done: int
    bytes_total: int
    variables_done: int
    variables_total: int
    def __init__(self, phase: _Optional[_Union[SyncProgress.Phase, str]] = ..., version: _Optional[int] = ..., status: _Optional[_Union[ModelStatus, _Mapping]] = ..., bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ..., variables_done: _Optional[int] = ..., variables_total: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("kind", "model", "version", "reason", "at", "restore_seconds")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Event.Kind]
        FOUND: _ClassVar[Event.Kind]
        SWAPPED: _ClassVar[Event.Kind]
        QUARANTINED: _ClassVar[Event.Kind]
        RESTORED: _ClassVar[Event.Kind]
    KIND_UNSPECIFIED: Event.Kind
    FOUND: Event.Kind
    SWAPPED: Event.Kind
    QUARANTINED: Event.Kind
    RESTORED: Event.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    RESTORE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    kind: Event.Kind
    model: str
    version: Version
    reason: str
    at: float
    restore_seconds: float
    def __init__(self, kind: _Optional[_Union[Event.Kind, str]] = ..., model: _Optional[str] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., reason: _Optional[str] = ..., at: _Optional[float] = ..., restore_seconds: _Optional[float] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("model", "version", "serve_at")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVE_AT_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    serve_at: float
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., serve_at: _Optional[float] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("model", "serve_at")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SERVE_AT_FIELD_NUMBER: _ClassVar[int]
    model: str
    serve_at: float
    def __init__(self, model: _Optional[str] = ..., serve_at: _Optional[float] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("model", "version", "serve_at")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVE_AT_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    serve_at: float
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., serve_at: _Optional[float] = ...) -> None: ...

class LabelRequest(_message.Message):
    __slots__ = ("model", "label", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    label: str
    version: int
    def __init__(self, model: _Optional[str] = ..., label: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class UnlabelRequest(_message.Message):
    __slots__ = ("model", "label")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    label: str
    def __init__(self, model: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class ReplaceWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReplacedWorker(_message.Message):
    __slots__ = ("number", "before", "after", "seconds")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    before: int
    after: int
    seconds: float
    def __init__(self, number: _Optional[int] = ..., before: _Optional[int] = ..., after: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class GetPublisherStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchPublisherRequest(_message.Message):
    __slots__ = ("in_bucket",)
    IN_BUCKET_FIELD_NUMBER: _ClassVar[int]
    in_bucket: bool
    def __init__(self, in_bucket: bool = ...) -> None: ...

class PublisherStatus(_message.Message):
    __slots__ = ("state", "store", "device", "step", "total_steps", "steps_per_epoch", "loss", "steps_per_second", "published", "publishes", "skipped", "last_error", "stall_seconds", "publish_seconds", "refused", "saved_step", "state_error", "held_back", "publisher", "bucket")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[PublisherStatus.State]
        STARTING: _ClassVar[PublisherStatus.State]
        TRAINING: _ClassVar[PublisherStatus.State]
        STOPPING: _ClassVar[PublisherStatus.State]
    STATE_UNSPECIFIED: PublisherStatus.State
    STARTING: PublisherStatus.State
    TRAINING: PublisherStatus.State
    STOPPING: PublisherStatus.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    PUBLISHES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    STALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SAVED_STEP_FIELD_NUMBER: _ClassVar[int]
    STATE_ERROR_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    state: PublisherStatus.State
    store: str
    device: str
    step: int
    total_steps: int
    steps_per_epoch: int
    loss: float
    steps_per_second: float
    published: Version
    publishes: int
    skipped: int
    last_error: str
    stall_seconds: float
    publish_seconds: float
    refused: int
    saved_step: int
    state_error: str
    held_back: str
    publisher: str
    bucket: Bucket
    def __init__(self, state: _Optional[_Union[PublisherStatus.State, str]] = ..., store: _Optional[str] = ..., device: _Optional[str] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., steps_per_epoch: _Optional[int] = ..., loss: _Optional[float] = ..., steps_per_second: _Optional[float] = ..., published: _Optional[_Union[Version, _Mapping]] = ..., publishes: _Optional[int] = ..., skipped: _Optional[int] = ..., last_error: _Optional[str] = ..., stall_seconds: _Optional[float] = ..., publish_seconds: _Optional[float] = ..., refused: _Optional[int] = ..., saved_step: _Optional[int] = ..., state_error: _Optional[str] = ..., held_back: _Optional[str] = ..., publisher: _Optional[str] = ..., bucket: _Optional[_Union[Bucket, _Mapping]] = ...) -> None: ...
