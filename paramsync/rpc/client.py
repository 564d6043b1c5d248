"""Calls a trainer and an inferencer with typed methods; every failure is one of our errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from paramsync import errors
from paramsync.rpc.addresses import check_address
from paramsync.v1 import sync_pb2 as pb

if TYPE_CHECKING:
    import numpy as np  # slow to import, and only predictions need it
    from typing_extensions import Self

    from paramsync.rpc.tls import ClientTls

SECONDS = 5.0  # limit for a call that only reads
CHANGING_SECONDS = 30.0  # limit for a call that publishes, or that changes which versions serve
REPLACING_SECONDS = 300.0  # limit for each replaced worker: more than the server's own limit

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # calls must not go through a web proxy
    ("grpc.max_receive_message_length", -1),  # the server limits the size of messages
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),  # reconnects within a second to a program that was restarted
)
# UNAVAILABLE may come from gRPC, which cannot connect, or from the server. Only the text shows which. If gRPC changes
# its texts, errors lack our advice but are still raised.
_NO_CONNECTION = (
    "failed to connect", "errors resolving", "DNS resolution failed", "Socket closed", "GOAWAY received", "recvmsg",
)  # fmt: skip
_NOBODY_THERE = ("Connection refused", "resol", "imed out", "unreachable")
_CALLERS_FAULT = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OUT_OF_RANGE)

_Answer = TypeVar("_Answer", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The token and the TLS settings that a client uses, if any."""

    token: str | None = field(default=None, repr=False)
    tls: ClientTls | None = None


NO_CREDENTIALS = Credentials()


class Stream(Generic[_Answer]):
    """The messages of a call as they arrive, for one thread. Any thread may call `close`, which ends the iteration."""

    def __init__(
        self, call: grpc.CallIterator[_Answer], explain: Callable[[grpc.RpcError], errors.ParamsyncError]
    ) -> None:
        self._call = call
        self._explain = explain

    def __iter__(self) -> Iterator[_Answer]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise self._explain(error) from None

    def close(self) -> None:
        self._call.cancel()


class _Client:
    """One channel to one program; threads may share it. Connects at the first call, and again after a failure."""

    program: str
    mistaken: str  # advice: which port the caller may have addressed by mistake

    def __init__(self, address: str, credentials: Credentials = NO_CREDENTIALS, *, name: str = "") -> None:
        """`name` is the name in the server's certificate, if it differs from the host in the address."""
        self.address = check_address(address)
        self._name = name
        token = credentials.token
        self._metadata = None if token is None else (("authorization", f"Bearer {token}"),)
        self._tls = tls = credentials.tls
        if tls is None:
            self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        else:
            named = (("grpc.ssl_target_name_override", name),) if name else ()
            self._channel = grpc.secure_channel(address, tls.credentials, options=(*_OPTIONS, *named))

    def serves(self, service: str = "") -> bool:
        """Return whether the program's health check reports that a service serves; False for an unknown service."""
        from grpc_health.v1 import health_pb2

        request = health_pb2.HealthCheckRequest(service=service)
        try:
            health = self._ask("/grpc.health.v1.Health/Check", request, health_pb2.HealthCheckResponse)
        except errors.RequestError:
            return False
        return bool(health.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: str, request: Message, answer: type[_Answer], *, seconds: float = SECONDS) -> _Answer:
        call = self._channel.unary_unary(method, _serialize, answer.FromString)
        try:
            response: _Answer = call(request, timeout=seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._explain(error, seconds) from None
        return response

    def _open(
        self, method: str, request: Message, answer: type[_Answer], *, seconds: float | None = None
    ) -> Stream[_Answer]:
        call = self._channel.unary_stream(method, _serialize, answer.FromString)
        return Stream(
            call(request, timeout=seconds, metadata=self._metadata), lambda error: self._explain(error, seconds)
        )

    def _explain(self, error: grpc.RpcError, seconds: float | None) -> errors.ParamsyncError:
        """Return the failure as one of our errors, on one line."""
        code, detail = error.code(), " ".join((error.details() or "").split())
        if code is grpc.StatusCode.UNAVAILABLE and detail.startswith(_NO_CONNECTION):
            if why := self._why_no_connection(detail):
                return errors.CallError(f"{self.program} at {self.address}: {why}", code.name)
            return errors.NotReachableError(self.program, self.address, detail.rpartition(": ")[2].rstrip("]"))
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and "deadline exceeded" in detail.lower():  # gRPC's own text
            return errors.CallError(f"{self.program} at {self.address} did not answer within {seconds:g} s", code.name)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return errors.CallError(f"{self.address} does not answer this call ({detail}): {self.mistaken}", code.name)
        if code in _CALLERS_FAULT:
            return errors.RequestError(detail)
        return errors.CallError(detail or f"{self.program} at {self.address} answered {code.name}", code.name)

    def _why_no_connection(self, detail: str) -> str | None:
        """Find a reason that gRPC does not give: a bad certificate, or one side that does not speak TLS."""
        if any(words in detail for words in _NOBODY_THERE):
            return None
        from paramsync.rpc import tls  # imported here, because most calls connect

        return tls.advise_tls(self.address) if self._tls is None else self._tls.explain(self.address, self._name)


class Trainer(_Client):
    """A trainer's control port."""

    program = "trainer"
    mistaken = "it may be a port of the inferencer; expected the trainer's control port"

    def status(self) -> pb.PublisherStatus:
        return self._ask("/paramsync.v1.Publisher/GetStatus", pb.GetPublisherStatusRequest(), pb.PublisherStatus)

    def publish(self, *, seconds: float = CHANGING_SECONDS) -> pb.Version:
        """Publish the current step now. Returns the version once it is committed."""
        return self._ask("/paramsync.v1.Publisher/Publish", pb.PublishRequest(), pb.Version, seconds=seconds)

    def watch(self, *, in_bucket: bool = False) -> Stream[pb.Version]:
        """Return a stream of all versions from now on: once committed, or with `in_bucket` once they are in the bucket.

        The stream ends when it is closed, or when the trainer closes its control port.
        """
        request = pb.WatchPublisherRequest(in_bucket=in_bucket)
        return self._open("/paramsync.v1.Publisher/Watch", request, pb.Version)


class Inferencer(_Client):
    """An inferencer's control port. Predictions have another port."""

    program = "inferencer"
    mistaken = "it may be the inferencer's other port, for predictions; expected its control port"

    def status(self, model: str = "") -> tuple[pb.ModelStatus, ...]:
        """Return the status of a model, or of all models if none is named."""
        return tuple(self.report(model).models)

    def report(self, model: str = "", *, load: bool = False) -> pb.GetStatusResponse:
        """Return the status of models and workers; with `load` also the workers' counts of requests."""
        request = pb.GetStatusRequest(model=model, load=load)
        return self._ask("/paramsync.v1.Sync/GetStatus", request, pb.GetStatusResponse)

    def sync(
        self,
        model: str = "",
        *,
        version: int | None = None,
        fresh: bool = False,
        serve_at: float | None = None,
        seconds: float = CHANGING_SECONDS,
        progress: Callable[[pb.SyncProgress], None] = lambda _: None,
    ) -> pb.ModelStatus:
        """Return once this version, or the newest published version, serves; `progress` gets every message until then.

        With `fresh` the trainer publishes first, and the inferencer syncs to that version. Raises SyncError if the
        version cannot be served in time, RequestError for an unknown model or version.
        """
        request = pb.SyncRequest(model=model, version=version, fresh=fresh, serve_at=serve_at)
        last = pb.SyncProgress()
        for last in self._steps("Sync", request, pb.SyncProgress, _until(serve_at) + seconds):
            progress(last)
        if last.phase != pb.SyncProgress.DONE:
            raise errors.SyncError(f"inferencer at {self.address} ended the sync without saying that it is done")
        return last.status

    def watch(self, model: str = "") -> Stream[pb.Event]:
        """Return a stream of all events from now on, until the stream is closed."""
        return self._open("/paramsync.v1.Sync/Watch", pb.WatchRequest(model=model), pb.Event)

    def pin(
        self, model: str, version: int, *, serve_at: float | None = None, seconds: float = CHANGING_SECONDS
    ) -> pb.ModelStatus:
        """Serve this version until it is unpinned."""
        request = pb.PinRequest(model=model, version=version, serve_at=serve_at)
        return self._change("Pin", request, _until(serve_at) + seconds)

    def unpin(self, model: str, *, serve_at: float | None = None, seconds: float = CHANGING_SECONDS) -> pb.ModelStatus:
        """Follow the newest version again."""
        return self._change("Unpin", pb.UnpinRequest(model=model, serve_at=serve_at), _until(serve_at) + seconds)

    def rollback(
        self,
        model: str,
        version: int | None = None,
        *,
        serve_at: float | None = None,
        seconds: float = CHANGING_SECONDS,
    ) -> pb.ModelStatus:
        """Serve the version that served before, or `version`, until it is unpinned."""
        request = pb.RollbackRequest(model=model, version=version, serve_at=serve_at)
        return self._change("Rollback", request, _until(serve_at) + seconds)

    def label(self, model: str, label: str, version: int, *, seconds: float = CHANGING_SECONDS) -> pb.ModelStatus:
        """Give this version a label. Another version with the label loses it."""
        return self._change("Label", pb.LabelRequest(model=model, label=label, version=version), seconds)

    def unlabel(self, model: str, label: str, *, seconds: float = CHANGING_SECONDS) -> pb.ModelStatus:
        """Remove a label."""
        return self._change("Unlabel", pb.UnlabelRequest(model=model, label=label), seconds)

    def replace_workers(self, *, seconds: float = REPLACING_SECONDS) -> Iterator[pb.ReplacedWorker]:
        """Replace the worker processes one after the other. Yields each worker once it is replaced.

        Raises SyncError if a new process does not come up, or if a worker takes longer than `seconds` on average.
        """
        most = seconds * max(1, len(self.report().workers))  # `report` also fails fast if no server answers
        yield from self._steps("ReplaceWorkers", pb.ReplaceWorkersRequest(), pb.ReplacedWorker, most)

    def _steps(self, method: str, request: Message, answer: type[_Answer], seconds: float) -> Iterator[_Answer]:
        """Yield each step of a long change once it is done. Raises SyncError if the change fails."""
        try:
            yield from self._open(f"/paramsync.v1.Sync/{method}", request, answer, seconds=seconds)
        except errors.NotReachableError:
            raise
        except errors.CallError as error:
            raise errors.SyncError(str(error)) from error

    def _change(self, method: str, request: Message, seconds: float) -> pb.ModelStatus:
        return self._ask(f"/paramsync.v1.Sync/{method}", request, pb.ModelStatus, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Outputs by name, and the version that computed all of them."""

    outputs: Mapping[str, np.ndarray]
    version: int


def short(error: errors.ParamsyncError, server: str) -> str:
    """The text of an error without the server's name, which is shown next to it."""
    if isinstance(error, errors.NotReachableError):
        return f"not reachable ({error.why})"
    return str(error).replace(f"{Inferencer.program} at {server} ", "")


class Predictor(_Client):
    """The predictions port of an inferencer, or of anything that speaks TensorFlow Serving's PredictionService."""

    program = "inferencer"
    mistaken = "it may be the inferencer's other port, for control; expected its port for predictions"

    def predict(self, model: str, inputs: Mapping[str, np.ndarray], *, seconds: float = SECONDS) -> Prediction:
        """Send one request. Raises RequestError if the inputs do not fit, CallError if no version serves."""
        from paramsync.rpc import tensor_proto
        from paramsync.v1 import serving_pb2

        request = serving_pb2.PredictRequest(model_spec=serving_pb2.ModelSpec(name=model))
        for name, array in inputs.items():
            request.inputs[name].CopyFrom(tensor_proto.from_array(array))
        method = "/tensorflow.serving.PredictionService/Predict"
        answer = self._ask(method, request, serving_pb2.PredictResponse, seconds=seconds)
        try:
            outputs = tensor_proto.to_arrays(answer.outputs, "output")
        except errors.InputError as error:  # a wrong tensor in an answer is the server's fault
            raise errors.CallError(f"{self.program} at {self.address} answered {error}", "INTERNAL") from error
        return Prediction(outputs, answer.model_spec.version.value)


def _until(serve_at: float | None) -> float:
    """Return the seconds until a moment; 0 if there is none."""
    return 0.0 if serve_at is None else max(0.0, serve_at - time.time())


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
