"""All errors, grouped by whose fault they are. Texts say what was expected, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class ParamsyncError(Exception):
    """The base class of all errors of this project. The text is one line for people."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by attributes, because the constructors of some errors take other arguments than `args`."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[ParamsyncError], arguments: tuple[Any, ...], held: dict[str, Any]) -> ParamsyncError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(held)
    return error


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


# The caller's or operator's fault -------------------------------------------------------------------------------------


class SettingsError(ParamsyncError):
    """An argument, setting or address cannot be used. Programs end with exit code 2."""


class RequestError(ParamsyncError):
    """A request that no version can answer."""


class UnknownModelError(RequestError):
    def __init__(self, model: str, known: Iterable[str]) -> None:
        served = _quoted(known)
        wrong = f"model {model!r} is not served here" if model else "no model is named, and not just one is served"
        super().__init__(f"{wrong}; served: {served}")


class UnknownVersionError(RequestError):
    def __init__(self, where: str, number: int, known: Iterable[int], why: str = "", advice: str = "") -> None:
        """`why` is empty, or says why the version cannot be used although it exists; `advice` says what to do."""
        listed = ", ".join(map(str, sorted(known))) or "none"
        problem = f"cannot be used: {why}" if why else "is not there"
        super().__init__(f"version {number} of {where} {problem}; there are: {listed}{advice and f'; {advice}'}")


class UnknownLabelError(RequestError):
    def __init__(self, model: str, label: str, known: Iterable[str]) -> None:
        super().__init__(f"label {label!r} of model {model!r} is not there; there are: {_quoted(known)}")


class UnknownSignatureError(RequestError):
    def __init__(self, signature: str, known: Iterable[str], why: str = "") -> None:
        """`why` is empty, or says why the signature cannot be served although it exists."""
        problem = f"is not served: {why}" if why else "does not exist"
        super().__init__(f"signature {signature!r} {problem}; there are: {_quoted(known)}")


class TooLargeError(RequestError):
    """A message larger than its limit."""

    def __init__(self, what: str, *, limit: int, found: int) -> None:
        super().__init__(f"{what}: expected at most {limit} bytes, found {found}")


class InputError(RequestError):
    """A value in a request is not as expected, such as an input that does not fit the signature."""

    def __init__(self, what: str, *, expected: object, found: object) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}")


class NotAllowedError(RequestError):
    """The caller may not make this request. The text names the option that allows it."""


class UnauthenticatedError(NotAllowedError):
    """The credential of a call is missing or unknown."""


class StoppedError(RequestError):
    """A request to publish came after training had stopped."""

    def __init__(self) -> None:
        super().__init__("training has stopped; nothing more is published")


# The store's fault ----------------------------------------------------------------------------------------------------


class StoreError(ParamsyncError):
    """A store cannot be read or written."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"store {path}: {problem}")
        self.path = path


class UnreadableError(StoreError):
    """A file cannot be read now, for a reason outside of the file. A later attempt may succeed."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path.parent, f"{path.name} cannot be read: {why}")


class StoreLockedError(StoreError):
    """The store already has a publisher."""

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(path, f"already has a publisher ({owner}); a store has one publisher at a time")
        self.owner = owner


class CorruptCheckpointError(ParamsyncError):
    """Files are damaged, or belong to another checkpoint."""

    def __init__(self, path: Path, *, expected: object, found: object) -> None:
        super().__init__(f"{path}: expected {expected}, found {found}")
        self.path = path


class UntrustedError(ParamsyncError):
    """Only signed versions are served, and no trusted key signed this version."""

    def __init__(self, where: str, *, expected: object, found: object) -> None:
        super().__init__(f"{where} is not trusted: expected {expected}, found {found}")


class UnfinishedError(ParamsyncError):
    """Files are missing or incomplete. Their writer may not have finished yet."""


class RemoteError(ParamsyncError):
    """A bucket, or an object in it, cannot be used."""


class EmptiedError(RemoteError):
    """The state object of a bucket, which was there before, is gone."""

    def __init__(self) -> None:
        super().__init__("the state object is gone: somebody emptied the bucket; publish to another address")


class NotFollowedError(RemoteError):
    """The state of a bucket is gone, older than a follower's copy, or of another training run."""


class FencedError(RemoteError):
    """Another publisher of the same bucket has replaced this publisher."""

    def __init__(self, mine: int, current: int) -> None:
        super().__init__(f"another publisher has begun, epoch {current} after {mine}: this one stops")


# The graph's fault ----------------------------------------------------------------------------------------------------


class GraphError(ParamsyncError):
    """A graph cannot be captured, lifted (made a pure function), read or called."""


class UnfinishedMetaError(UnfinishedError, GraphError):
    """A `.meta` file, or an asset of a SavedModel, is missing or incomplete."""


class UnsafeGraphError(GraphError):
    """A stranger's graph is refused because of its ops, or because it is too large."""


class StructureError(GraphError):
    """A model's variables or layers have changed since its capture, and the model cannot be captured again."""


class ParameterError(GraphError):
    """Parameters do not fit the graph by name, shape or dtype, or have values that must not be served."""

    def __init__(self, where: str, *, expected: object, found: object) -> None:
        super().__init__(f"parameters of {where}: expected {expected}, found {found}")


# Nobody's fault -------------------------------------------------------------------------------------------------------


class NotServingError(ParamsyncError):
    """The model has no version that serves."""

    def __init__(self, model: str, why: str) -> None:
        super().__init__(f"model {model!r} is not serving: {why}")


class BusyError(ParamsyncError):
    """Too many calls are waiting already."""


class SyncError(ParamsyncError):
    """A sync did not reach the requested version."""


class CallError(ParamsyncError):
    """A call failed. The text comes from the other program, if it sent one; `code` is the gRPC status."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class NotReachableError(CallError):
    """No server answers at an address."""

    def __init__(self, program: str, address: str, why: str) -> None:
        super().__init__(
            f"{program} not reachable at {address} ({why}): start it, or give the address it logs when it is ready",
            "UNAVAILABLE",
        )
        self.why = why


class PublishError(ParamsyncError):
    """A publication failed. Training goes on, and the previous version is still the latest."""


class NotFiniteError(PublishError):
    """A publication was refused because of NaN or infinity. `names` are the parameters with such values."""

    SHOWN = 5

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        some = ", ".join(name if name.isprintable() else repr(name) for name in self.names[: self.SHOWN])
        more = f" and {len(names) - self.SHOWN} more" if len(names) > self.SHOWN else ""
        super().__init__(
            f"NaN or infinity in {some}{more}: not published, the version before is still the latest; go back to it or"
            " mend the training step, or publish all the same with allow_nan=True or --allow-nan"
        )
