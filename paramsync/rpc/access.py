"""Decides who may call what: which calls change something, and which credentials they need. Logs each change."""

from __future__ import annotations

import enum
import logging
import threading
from asyncio import CancelledError
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from paramsync.errors import NotAllowedError, UnauthenticatedError
from paramsync.host.files import shown
from paramsync.rpc.addresses import is_here, is_loopback
from paramsync.rpc.settings import FLAGS, OptionNames
from paramsync.rpc.tokens import Tokens

_audit = logging.getLogger("paramsync.audit")
_HEADER = "authorization"
_SCHEME = "bearer "
_TOLD_EACH, _TOLD_ALL = 10, 60  # the most refusals that are logged in an interval: of one host, and in total
_TOLD_SECONDS = 60.0  # the length of an interval, in seconds
_HOSTS = 64  # at most this many hosts have their own counts of refusals that are not logged


class Effect(enum.Enum):
    """The effect of a call. Everybody may call HEALTH."""

    HEALTH = "health"
    READS = "reads"
    CHANGES = "changes"


_KSERVE = "inference.GRPCInferenceService"
_HEALTH = {"grpc.health.v1.Health": ("Check", "Watch"), _KSERVE: ("ServerLive", "ServerReady")}
_READS = {
    "paramsync.v1.Sync": ("GetStatus", "Watch"),
    "paramsync.v1.Publisher": ("GetStatus", "Watch"),
    "tensorflow.serving.PredictionService": ("Classify", "GetModelMetadata", "MultiInference", "Predict", "Regress"),
    "tensorflow.serving.ModelService": ("GetModelStatus",),
    _KSERVE: (
        "CudaSharedMemoryStatus", "ModelConfig", "ModelInfer", "ModelMetadata", "ModelReady", "ModelStatistics",
        "ModelStreamInfer", "RepositoryIndex", "ServerMetadata", "SystemSharedMemoryStatus",
    ),
    "grpc.reflection.v1alpha.ServerReflection": ("ServerReflectionInfo",),
}  # fmt: skip


def _listed(effect: Effect, services: Mapping[str, Iterable[str]]) -> dict[str, Effect]:
    return {f"{service}/{method}": effect for service, methods in services.items() for method in methods}


_EFFECTS = {**_listed(Effect.HEALTH, _HEALTH), **_listed(Effect.READS, _READS)}


def effect_of(method: str) -> Effect:
    """Return the effect of a gRPC method, given as "package.Service/Method". An unlisted method counts as a change."""
    return _EFFECTS.get(method, Effect.CHANGES)


@dataclass(frozen=True, slots=True)
class Caller:
    """The address of a caller, its bearer token, and the name in its verified certificate."""

    peer: str
    token: str | None = field(default=None, repr=False)
    certificate: str | None = None

    @classmethod
    def of(cls, peer: str, metadata: Iterable[tuple[str, str | bytes]], certificate: str | None) -> Caller:
        """Return the caller with these headers. `certificate` is the name in its verified certificate."""
        return cls(peer, bearer(next((value for name, value in metadata if name == _HEADER), None)), certificate)

    @classmethod
    def of_grpc(cls, context: Any, peer: str) -> Caller:
        """Return the caller of a call at a grpcio server."""
        shown = context.auth_context()  # gRPC has verified the certificate
        names = shown.get("x509_common_name") or shown.get("x509_subject_alternative_name") or (None,)
        name = None if names[0] is None else names[0].decode(errors="replace")
        return cls.of(peer, context.invocation_metadata() or (), name)


def bearer(header: str | bytes | None) -> str | None:
    """Return the token of an authorization header, if any."""
    text = header.decode(errors="replace") if isinstance(header, bytes) else header or ""
    return text[len(_SCHEME) :].strip() if text[: len(_SCHEME)].lower() == _SCHEME else None


def name_in(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the common name in a certificate from Python's ssl, or else the first other name; None without names."""
    shown = certificate or {}
    names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    return next((str(name) for name in (*names, *(value for _, value in shown.get("subjectAltName", ())))), None)


class RefusalLimit:
    """Decides which refusals of an interval get a log line, and counts all others by host, so that logs stay small.

    If a host has too many refusals, they are only counted until an interval passes without a refusal of this host. The
    caller takes the lock.
    """

    def __init__(self) -> None:
        self._told: Counter[str] = Counter()  # refusals of this interval that got a line, by host
        self._more: Counter[str] = Counter()  # all other refusals of this interval, by host
        self._counted: frozenset[str] = frozenset()  # hosts with too many refusals in the previous interval

    def is_told(self, host: str) -> bool:
        """Return whether this refusal gets a line. If not, count it."""
        if host in self._counted or self._told[host] >= _TOLD_EACH or self._told.total() >= _TOLD_ALL:
            self._more[host if host in self._more or len(self._more) < _HOSTS else "others"] += 1
            return False
        self._told[host] += 1
        return True

    def next(self) -> Counter[str]:
        """Begin the next interval. Returns how many refusals of each host were only counted."""
        more, self._told, self._more = self._more, Counter(), Counter()
        self._counted = frozenset(more)
        return more


class Access:
    """Decides who may call at one port. Safe to use from any thread.

    If tokens or callers' certificates are configured, each call that changes something needs a token or a certificate;
    with `reads`, each call that reads needs one as well. If neither is configured, only a port on a loopback address
    takes calls that change something.
    """

    def __init__(
        self,
        *,
        host: str,
        tokens: Tokens | None = None,
        certificates: bool = False,
        reads: bool = False,
        options: OptionNames = FLAGS,
    ) -> None:
        """With `certificates`, the port takes callers' certificates. Advice uses the names in `options`."""
        self.host = host
        self._tokens = tokens
        self._certificates = certificates
        self._reads = reads
        self._options = options
        self._refusals = RefusalLimit()
        self._lock = threading.Lock()  # guards `_refusals` and `_interval`
        self._interval: threading.Timer | None = None
        self.is_open = not self._is_configured and is_loopback(host)
        """Whether every caller may change something."""

    def in_plain(self, *, tls: bool) -> str:
        """Return advice on configuration if tokens travel unencrypted; else empty."""
        if tls or self._tokens is None or is_loopback(self.host):
            return ""
        with_what = f"{self._options.certificate} FILE and {self._options.key} FILE"
        return f"tokens and answers are not encrypted on {self.host}: start with {with_what}"

    @property
    def _is_configured(self) -> bool:
        return self._tokens is not None or self._certificates

    @property
    def advice(self) -> str:
        """Advice on configuration if the port refuses every call that changes something; else empty."""
        if self.is_open or self._is_configured:
            return ""
        return (
            f"calls that change something are refused on {self.host}, which other machines may reach: start with"
            f" {self._options.tokens} or {self._options.client_ca} FILE, or listen on a loopback address"
        )

    def looks_at(self, effect: Effect) -> bool:
        """Return whether calls with this effect are checked."""
        return effect is Effect.CHANGES or (effect is Effect.READS and self._reads)

    def who(self, caller: Caller) -> str | None:
        """Return the name of a caller with a valid credential, if any."""
        by_token = None if self._tokens is None or caller.token is None else self._tokens.who(caller.token)
        return by_token or (caller.certificate if self._certificates else None)

    def check(self, what: str, caller: Caller) -> None:
        """Check a call that changes something. Logs and raises NotAllowedError, UnauthenticatedError."""
        with self.refusals(what, caller):
            self.check_read(what, caller)

    def check_host(self, what: str, named: Iterable[str], others: Collection[str] = (), *, option: str = "") -> None:
        """Raise NotAllowedError if only this machine may call, and the header Host names another machine.

        A site can make its own name lead to a loopback address (DNS rebinding); a browser then sends the site's name.
        `others` are names that `option` allows as well.
        """
        if not self.is_open:
            return
        for host in named:
            if host and not is_here(host, (self.host, *others)):
                more = f", or a name that {option} gives" if option else "; have a proxy ask for localhost"
                expected = f"a loopback address in the header Host{more}"
                raise NotAllowedError(f"{what}: expected {expected}, found {host[:200]!r}")

    def check_read(self, what: str, caller: Caller) -> None:
        """Check a call that reads. Raises NotAllowedError, UnauthenticatedError."""
        if self.is_open or self.who(caller) is not None:
            return
        if not self._is_configured:
            raise NotAllowedError(f"{what}: {self.advice}")
        if self._tokens is None:
            raise UnauthenticatedError(
                f"{what}: expected a certificate of its caller, found none: paramsync shows one with --tls-cert FILE"
                " and --tls-key FILE"
            )
        found = "none" if caller.token is None else "another one"
        raise UnauthenticatedError(
            f"{what}: expected a token that is known here, found {found}: paramsync sends one with --token-file FILE or"
            " PARAMSYNC_TOKEN, other clients as authorization: Bearer TOKEN"
        )

    @property
    def takes_tokens(self) -> bool:
        return self._tokens is not None

    @contextmanager
    def refusals(self, what: str, caller: Caller) -> Iterator[None]:
        """Log a NotAllowedError that the block raises, or count it if there are many."""
        try:
            yield
        except NotAllowedError as error:
            with self._lock:
                is_told = self._refusals.is_told(caller.peer.rpartition(":")[0] or caller.peer)
                if self._interval is None:
                    self._begin_interval()
            if is_told:
                self._log(what, caller, outcome="refused", why=str(error))
            raise

    def _begin_interval(self) -> None:
        self._interval = threading.Timer(_TOLD_SECONDS, self.tell_refusals)
        self._interval.daemon = True
        self._interval.start()

    def tell_refusals(self) -> None:
        """Log how many refusals of the interval got no line, and begin the next interval."""
        with self._lock:
            more = self._refusals.next()
            self._interval = None
            if more:
                self._begin_interval()
        if more:
            hosts = ", ".join(f"{shown(host)} ({count})" for host, count in more.most_common())
            told = f"{_TOLD_SECONDS:g} s, not told one by one"
            _audit.warning("outcome='refused' more=%d within=%r from=%s", more.total(), told, hosts)

    @contextmanager
    def audited(self, what: str, caller: Caller, request: str = "") -> Iterator[AuditedChange]:
        """Log the outcome of the change that the block makes."""
        change = AuditedChange()
        try:
            yield change
        except (CancelledError, GeneratorExit):
            self._log(what, caller, request, outcome="failed", why="its caller left")
            raise
        except BaseException as error:
            self._log(what, caller, request, outcome="failed", why=change.why or str(error))
            raise
        self._log(what, caller, request, outcome="done")

    def _log(self, what: str, caller: Caller, request: str = "", *, outcome: str, why: str = "") -> None:
        """Log one line. Values are quoted as by Python, so that callers cannot forge lines."""
        who = self.who(caller) or ("anybody here" if self.is_open else None)
        values = {"what": what, "request": request, "who": who, "from": caller.peer, "outcome": outcome, "why": why}
        line = " ".join(f"{name}={shown(value)}" for name, value in values.items() if value)
        _audit.log(logging.INFO if outcome == "done" else logging.WARNING, "%s", line)


class AuditedChange:
    """A change in progress. `why` is the reason for a failure whose exception has no text."""

    def __init__(self) -> None:
        self.why = ""
