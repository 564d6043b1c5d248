"""A folder of an object store, by an address such as s3://bucket/models/digits.

Only this module uses obstore. Credentials and endpoints come from the usual environment variables, such as those that
start with AWS.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from paramsync.errors import RemoteError, SettingsError
from paramsync.program.packages import install
from paramsync.remote import reasons, settings
from paramsync.remote import state as states
from paramsync.remote.protocol import Answer, Answered, Create, Delete, Found, Operation, Read, Replace, Steps, Written
from paramsync.remote.state import State

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")

PARALLEL = 8  # parts of an upload, or ranges of a download, in transfer at once

_PART = 8 << 20  # bytes of one part of an upload
_LONGEST = 16 * settings.STALLED  # seconds that the slowest link may take for a part
_FIRST_WAIT, _LAST_WAIT = 0.1, 5.0  # seconds of the back-off after a refusal or an unknown outcome
_MOST_UNKNOWN = 8  # so many unknown outcomes in one run of the protocol raise an error
_RACE = 8  # writers that `probe` starts at once to replace one object
_PASSWORD = re.compile(r"//[^/]*@")
_PLACE = re.compile(r"region=[\w-]+|endpoint=https?://[^/?#@&]+/?")  # the parameters that an address may have
_TRIES = 5  # attempts of each write in `probe`: some servers allow only one write of an object per second
_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=10)}  # the retries of obstore within a call
_NO_RETRIES: Any = {"max_retries": 0}
T = TypeVar("T")


def is_address(text: str) -> bool:
    """Whether a text is the address of a folder in an object store rather than a path."""
    return text.partition("://")[0] in SCHEMES and "://" in text


def check_address(text: str) -> None:
    """Raise SettingsError unless the text is the address of a folder in an object store."""
    scheme, _, place = text.partition("://")
    place, mark, query = place.partition("?") if scheme in ("s3", "s3a") else (place, "", "")
    shown = repr(_without_secret(text))
    if not is_address(text) or not place or place.startswith("/"):
        raise SettingsError(f"expected an address such as s3://bucket/models/digits, found {shown}")
    if "," in text:
        raise SettingsError(f"expected one address, found several: {', '.join(map(_without_secret, text.split(',')))}")
    if any(sign in place for sign in "?#@"):
        wrong = "without a query, fragment or password: credentials come from the environment"
        raise SettingsError(f"expected {scheme}://bucket/folder, {wrong}")
    if any(part in ("", ".", "..") for part in place.rstrip("/").split("/")):
        raise SettingsError(f"expected {scheme}://bucket/folder without empty parts, . and .., found {shown}")
    parts = query.split("&") if mark else []
    if not all(map(_PLACE.fullmatch, parts)) or len({part.partition("=")[0] for part in parts}) < len(parts):
        wrong = "without another query or password: credentials come from the environment"
        raise SettingsError(f"expected {scheme}://bucket/folder, ?region=REGION or ?endpoint=https://HOST, {wrong}")


def naming(address: str, error: Exception) -> str:
    """Return the text of an error, with the address that it is about."""
    return str(error) if address.rstrip("/") in str(error) else f"{address}: {error}"


def check_keep(target: str, keep: int) -> None:
    """Raise SettingsError if the target is a bucket and its state has no room for `keep` versions."""
    if is_address(target) and keep > states.MOST_VERSIONS:
        raise SettingsError(f"keep: expected at most {states.MOST_VERSIONS} versions in a bucket, found {keep}")


@contextmanager
def asked_once() -> Iterator[None]:
    """For operators' commands, which do not retry: turn ConnectionError into RemoteError."""
    try:
        yield
    except ConnectionError as error:
        raise RemoteError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Stored:
    """An object in a bucket: its size in bytes, and the time of its last write by the server's clock."""

    size: int
    written_at: float


class Bucket:
    """One folder of an object store. Safe to use from any thread."""

    def __init__(self, address: str, *, store: Any = None, patience: float | None = None) -> None:
        """`store` is an obstore object to use; by default one is made from the address.

        `patience` is the most seconds that a look at the state may take, for a bucket that another can replace. Other
        calls may be silent for as long; `get_range` raises that time if the bucket is slow.

        Raises SettingsError if the address cannot be used or obstore is not installed.
        """
        self.address = address.rstrip("/")
        check_address(address)
        scheme = address.partition("://")[0]
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise SettingsError(f"{self.address}: needs the package obstore: {install('bucket')}") from error
        self._obstore = obstore
        self._errors = obstore.exceptions
        self._prefix = settings.prefix(scheme)
        self._speed: float | None = None  # bytes per second of the last large upload
        self._stalled = settings.STALLED  # time-out in seconds for one part of an upload
        self._local = threading.local()
        self.answered_at: float | None = None
        """When this server last answered, in seconds since the epoch."""
        self.received: Callable[[int], object] = lambda count: None
        """Called with the number of bytes of each read of data, on any thread, for a progress bar."""

        url, _, query = self.address.partition("?")
        place: Any = dict(parse_qsl(query))

        def connect(stalled: float, retries: Any = _RETRIES, **limits: str) -> Any:
            options: Any = settings.connection(scheme, stalled) | limits
            return store or from_url(url, retry_config=retries, client_options=options, **place)

        def connect_reader() -> Any:
            if patience is None:
                return connect(self._silent)
            few = {**_RETRIES, "retry_timeout": timedelta(seconds=patience)}
            return connect(self._silent, few, connect_timeout=f"{patience:g}s")

        self._connect, self._connect_reader = connect, connect_reader
        self._silent = self._stalled if patience is None else patience  # time-out without a byte of an answer
        limits = {} if patience is None else {"timeout": f"{patience:g}s", "connect_timeout": f"{patience:g}s"}
        try:
            self._store = self._sender = connect_reader()
            self._looker = connect(self._stalled, _NO_RETRIES, **limits)
        except (self._errors.BaseError, ValueError) as error:
            raise SettingsError(f"{self.address}: {reasons.reason(error, self._prefix)}") from error

    @property
    def last_error(self) -> str:
        """Why the last operation of this thread failed; "" if it did not fail."""
        error: str = getattr(self._local, "error", "")
        return error

    def look(self, tag: str | None) -> Found | Answer | None:
        """Read the state object without retries, because the caller looks again soon anyway. See `read`."""
        return self.read(tag, store=self._looker)

    def read(self, tag: str | None = None, *, name: str = states.NAME, store: Any = None) -> Found | Answer | None:
        """Read the state object. Returns None if the object still has this tag.

        Raises RemoteError if access is denied, or if the object is too large for a state.
        """
        store = store or self._store
        options = {} if tag is None else {"if_none_match": tag.split("\n")[0]}
        try:
            found = self._call(lambda: self._obstore.get(store, name, options=options), self._errors.NotModifiedError)
        except self._errors.NotModifiedError:
            return None
        if isinstance(found, Answer):
            return found
        if found.meta["size"] > states.LIMIT:
            raise states.foreign(f"{found.meta['size']} bytes")
        content = self._call(lambda: bytes(found.bytes()))
        if isinstance(content, Answer):
            return content
        return Found(content, _tag(found.meta), _stored(found.meta).written_at)

    def state(self) -> State:
        """Return the state. Raises RemoteError if there is no state, no readable state, or no answer."""
        found = self.read()
        if found is Answer.UNKNOWN:
            raise RemoteError(f"{self.address} does not answer: {self.last_error}")
        if not isinstance(found, Found):
            raise RemoteError(f"{self.address}: nothing is published there yet")
        try:
            return states.from_json(found.content)
        except RemoteError as error:
            raise RemoteError(naming(self.address, error)) from error

    def answer(self, operation: Operation) -> Answered:
        """Perform one operation of the protocol, without a retry for an unknown outcome."""
        if isinstance(operation, Read):
            found = self.read()
            assert found is not None  # only a read with a tag returns None
            return found
        if isinstance(operation, Delete):
            answer = self._call(lambda: self._obstore.delete(self._store, operation.name))
            # A missing object counts as deleted, because not all servers say whether the object existed.
            return answer if answer is Answer.UNKNOWN else Answer.DONE
        return self._put(states.NAME, operation)

    def perform(self, steps: Steps[T], stop: threading.Event, *, unknown: int = _MOST_UNKNOWN) -> T:
        """Run steps of the protocol to their end, with a back-off after each refusal or unknown outcome.

        Raises ConnectionError after `unknown` unknown outcomes, InterruptedError once `stop` is set, and the errors of
        the steps.
        """
        wait = _FIRST_WAIT
        operation = next(steps)
        while True:
            answer = self.answer(operation)
            if answer in (Answer.UNKNOWN, Answer.REFUSED):
                if stop.wait(wait * (0.5 + secrets.randbelow(1024) / 1024)):
                    raise InterruptedError
                wait = min(2 * wait, _LAST_WAIT)
            unknown -= answer is Answer.UNKNOWN
            if unknown == 0:
                raise ConnectionError(f"{self.address}: {self.last_error}")
            try:
                operation = steps.send(answer)
            except StopIteration as ended:
                result: T = ended.value
                return result

    def put(self, name: str, content: bytes | memoryview | Iterable[memoryview], size: int = 0) -> None:
        """Write an object of data, in parts if it is large. `size` is needed only for content that is an iterable.

        On a slow link fewer parts are sent at once, so that no part takes too long. If even a single part takes too
        long, the next call has twice the time. Raises RemoteError, and ConnectionError if a later attempt may succeed.
        """
        if isinstance(content, bytes | memoryview):
            size = len(content)
            if size > _PART:  # without slices, obstore would copy every part that it is sending
                whole = memoryview(content)
                content = (whole[start : start + _PART] for start in range(0, size, _PART))
        parts = (
            PARALLEL if self._speed is None else max(1, min(PARALLEL, int(self._speed * settings.STALLED / 3 / _PART)))
        )
        begun, sender, stalled = time.monotonic(), self._sender, self._stalled
        written = self._call(lambda: self._obstore.put(sender, name, content, chunk_size=_PART, max_concurrency=parts))
        seconds = time.monotonic() - begun
        if written is Answer.UNKNOWN and seconds >= stalled:
            self._speed = 0.0
            if parts == 1:
                self._wait_at_most(min(2 * stalled, _LONGEST))
        elif not isinstance(written, Answer) and size > _PART:
            self._speed = size / seconds
            self._wait_at_most(max(settings.STALLED, 4 * parts * _PART / self._speed))
        self._done(name, written)

    def _wait_at_most(self, seconds: float) -> None:
        """Set the time-out for the parts of uploads."""
        if seconds != self._stalled:
            self._stalled, self._sender = seconds, self._connect(seconds)

    def seconds(self, size: int) -> float | None:
        """Return how long it will take to send so many bytes; None without a measurement."""
        return size / self._speed if self._speed else None

    def get(self, name: str, limit: int) -> bytes:
        """Return the content of a small object.

        Raises RemoteError, FileNotFoundError, and ConnectionError if a later attempt may succeed.
        """
        found = self._done(name, self._call(lambda: self._obstore.get(self._store, name)))
        if found.meta["size"] > limit:
            raise RemoteError(f"{name}: expected at most {limit} bytes, found {found.meta['size']}")
        content: bytes = self._done(name, self._call(lambda: bytes(found.bytes())))
        self.received(len(content))
        return content

    def get_range(self, name: str, start: int, stop: int) -> memoryview:
        """Return the bytes of an object from `start` to `stop`. Raises the errors of `get`.

        With `patience`, a call in which no byte comes for too long doubles the time of the next, because the bucket may
        be slow.
        """
        begun, store, silent = time.monotonic(), self._store, self._silent
        found = self._call(lambda: self._obstore.get_range(store, name, start=start, end=stop))
        if found is Answer.UNKNOWN:
            why = self.last_error
            if time.monotonic() - begun < silent:
                if (size := self.size(name)) < stop:
                    raise RemoteError(f"{name}: expected {stop} bytes, found {size}")
            elif self._silent == silent < settings.STALLED:  # no other thread noticed before
                self._silent = min(2 * silent, settings.STALLED)
                self._store = self._connect_reader()
            raise ConnectionError(f"{self.address}: {why}")
        content = memoryview(self._done(name, found))
        if len(content) != stop - start:
            raise RemoteError(f"{name}: expected {stop} bytes, found fewer")
        self.received(len(content))
        return content

    def objects(self, prefix: str = "") -> dict[str, Stored]:
        """Return all objects below a prefix, by name.

        Only for finding objects that no version needs, because a listing is slow and costs money.
        """
        listed = self._done(prefix, self._call(lambda: list(self._obstore.list(self._store, prefix or None))))
        return {meta["path"]: _stored(meta) for page in listed for meta in page}

    def first_names(self) -> list[str]:
        """Return the names on the first page of a listing. Raises the errors of `objects`."""
        listed = self._done("", self._call(lambda: next(iter(self._obstore.list(self._store)), [])))
        return [one["path"] for one in listed]

    def probe(self, stop: threading.Event) -> RemoteError | None:
        """Raise RemoteError unless this server can run the protocol. Some servers ignore the condition of a write.

        If the credentials may not delete, the error is returned instead of raised, because publishing works without
        deletions. Raises ConnectionError if the server does not answer, InterruptedError once `stop` is set.
        """
        name = f"probe/0/{secrets.token_hex(8)}"
        try:
            self._try(name, stop)
        except Exception:
            with suppress(RemoteError):
                self.answer(Delete(name))
            raise
        try:
            self.answer(Delete(name))
        except RemoteError as error:
            return error
        return None

    def _try(self, name: str, stop: threading.Event) -> None:
        first = self._put_surely(name, Create(b"0"), stop)
        if not isinstance(first, Written):
            raise self._unfit("refuses to create an object that is not there")
        if isinstance(self._put_surely(name, Create(b"1"), stop), Written):
            raise self._unfit("lets two writers create one object")
        second = self._put_surely(name, Replace(b"2", first.tag), stop)
        if not isinstance(second, Written):
            raise self._unfit("refuses to replace an object by its ETag")
        found = self.read(name=name)
        if found is not Answer.UNKNOWN and not (isinstance(found, Found) and found.content == b"2"):
            raise self._unfit("does not read what it has written")
        with ThreadPoolExecutor(_RACE) as pool:
            race = pool.map(lambda at: self._put(name, Replace(b"%d" % (3 + at), second.tag)), range(_RACE))
            winners = sum(isinstance(answer, Written) for answer in race)
        if winners > 1:
            raise self._unfit(f"let {winners} of {_RACE} writers replace one state of an object")

    def _put_surely(self, name: str, operation: Create | Replace, stop: threading.Event) -> Answered:
        """Write an object. Try again after an unknown outcome, such as a lost answer or status 429."""
        wait, is_unsure = _FIRST_WAIT, False
        for _ in range(_TRIES):
            answer = self._put(name, operation)
            is_unsure = is_unsure or answer is Answer.UNKNOWN
            if not is_unsure:
                return answer
            why = self.last_error
            found = self.read(name=name)
            if isinstance(found, Found) and found.content == operation.content:
                return Written(found.tag)
            if answer is not Answer.UNKNOWN:
                return answer
            if found is Answer.UNKNOWN:
                break
            if stop.wait(wait):
                raise InterruptedError
            wait *= 2
        raise ConnectionError(f"{self.address}: {why}")

    def size(self, name: str) -> int:
        """Return the size of an object in bytes. Raises the errors of `get`."""
        return self.head(name).size

    def head(self, name: str) -> Stored:
        """Return the size of an object and the time of its last write. Raises the errors of `get`."""
        return _stored(self._done(name, self._call(lambda: self._obstore.head(self._store, name))))

    def _unfit(self, what: str) -> RemoteError:
        return RemoteError(f"{self.address}: this server {what}; two publishers would destroy each other's versions")

    def _put(self, name: str, operation: Create | Replace) -> Answered:
        mode = "create" if isinstance(operation, Create) else _condition(operation.tag)
        refusals = self._errors.AlreadyExistsError, self._errors.PreconditionError
        try:
            written = self._call(
                lambda: self._obstore.put(self._store, name, operation.content, mode=mode, use_multipart=False),
                *refusals,
            )
        except refusals:
            return Answer.REFUSED
        if written is Answer.MISSING and isinstance(operation, Replace):  # S3's answer if the object is gone
            return Answer.REFUSED
        if written is Answer.MISSING:
            raise self._no_bucket()
        return written if isinstance(written, Answer) else Written(_tag(written))

    def _no_bucket(self) -> RemoteError:
        return RemoteError(f"{self.address}: there is no such bucket: create it, or correct the address or the region")

    def _call(self, call: Callable[[], Any], *answers: type[Exception]) -> Any:
        """Return the result of a call, MISSING, or UNKNOWN for an error that may be temporary.

        Raises RemoteError if access is denied, and errors of the classes `answers`, which are answers to this call.
        """
        is_answer = True
        try:
            result = call()
        except (FileNotFoundError, self._errors.NotFoundError) as error:
            if reasons.is_without_bucket(error):
                raise self._no_bucket() from error
            return Answer.MISSING
        except (self._errors.PermissionDeniedError, self._errors.UnauthenticatedError) as error:
            raise self._denied(error) from error
        except answers:
            raise
        except (self._errors.BaseError, OSError) as error:
            is_answer = False
            if reasons.is_denied(error):
                raise self._denied(error) from error
            if reasons.is_without_credentials(error):
                raise RemoteError(f"{self.address}: {reasons.no_credentials(self._prefix)}") from error
            self._local.error = reasons.reason(error, self._prefix)
            return Answer.UNKNOWN
        finally:
            if is_answer:
                self.answered_at = time.time()
        self._local.error = ""
        return result

    def _denied(self, error: Exception) -> RemoteError:
        return RemoteError(f"{self.address}: access is denied: {reasons.denial(error, self._prefix)}")

    def _done(self, name: str, answer: Any) -> Any:
        if answer is Answer.MISSING:
            raise FileNotFoundError(f"{self.address.partition('?')[0]}/{name}")
        if answer is Answer.UNKNOWN:
            raise ConnectionError(f"{self.address}: {self.last_error}")
        return answer


def _stored(meta: Any) -> Stored:
    return Stored(meta["size"], meta["last_modified"].timestamp())


def _tag(meta: Any) -> str:
    """Return the ETag and the version of an object as one text. GCS compares only versions, named generations there."""
    return f"{meta.get('e_tag') or ''}\n{meta.get('version') or ''}"


def _condition(tag: str) -> dict[str, str]:
    e_tag, version = tag.split("\n")
    return {key: value for key, value in (("e_tag", e_tag), ("version", version)) if value}


def _without_secret(address: str) -> str:
    return _PASSWORD.sub("//", address.partition("?")[0])
