"""Copies the newest version of a local store into a bucket: first data and manifest, then the state that names them."""

from __future__ import annotations

import hashlib
import mmap
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from crc32c import crc32c

from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.tensor_bytes import each
from paramsync.errors import EmptiedError, FencedError, RemoteError, UnknownVersionError
from paramsync.host import files
from paramsync.remote import copy_note, protocol, tensors
from paramsync.remote import manifest as manifests
from paramsync.remote import state as states
from paramsync.remote.bucket import Bucket
from paramsync.remote.collect import FORMS, MOST_CONDEMNED, RUN, list_orphans
from paramsync.remote.manifest import Edge, Manifest, Whole
from paramsync.remote.protocol import Answer, Found, Held
from paramsync.remote.state import Listed
from paramsync.remote.tensors import Contents, Parts
from paramsync.remote.transfer import Transfer
from paramsync.store.store import LastPublisher, PublisherState, Store, last_publisher
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Entry, Index
from paramsync.version import Version

GRACE = 60.0  # seconds for which condemned objects stay, because followers may be reading them

_STRIDES = (1, 8, 64)  # how many versions a delta spans; with long deltas, a late follower needs only a few
_KEPT = 48  # a delta over `stride` versions is kept for `stride` times this many versions
_LEAST = 128  # a delta is kept for at least this many versions, so that short deltas lead to where long deltas begin
_WORTH = 0.8  # a delta must be smaller than this share of a whole version
_LARGE = 64 << 20  # bytes: for smaller whole versions, the time to make a delta is not considered
_SAMPLE = 1 / 8  # after this share of the tensors, the time to make the whole delta is estimated
_SMALL = 1 << 20  # bytes: larger deltas are kept in a temporary file, not in memory
_CHAIN = 0.5  # the deltas since the last whole version may have at most this share of its bytes
# If the last delta is shorter than this share of a whole version, and the chain of deltas is nearly full, the whole
# object is sent after the version, so that no later version has to wait for a whole object.
_SHORT = 1 / 16

_Object: TypeAlias = tuple[str, bytes | memoryview | Iterable[memoryview], int]
"""Name, content and size of an object to send."""


@dataclass(frozen=True, eq=False)
class _Sent:
    """A version in the bucket, with its mapped files, whose bytes do not change while `bundle` is referenced."""

    version: Version
    bundle: Bundle
    packed: Index


@dataclass(frozen=True, slots=True, eq=False)
class _Delta:
    """A delta, and its content in memory or in a mapped temporary file."""

    edge: Edge
    content: memoryview


@dataclass(frozen=True, slots=True)
class _Placed:
    """A delta in the bucket, its stride, and the count of commits when it was sent."""

    edge: Edge
    stride: int
    count: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Lets a new process of the same publisher take over the bucket again, unless a successor has begun.

    nonce  the same in all processes of a publisher, so that a new process recognises the take-over of an earlier
           process that died before `tell`
    seen   the run and the epoch that an earlier process of the publisher reported
    tell   called with run and epoch once the bucket is taken over
    """

    nonce: str
    seen: tuple[str, int] | None = None
    tell: Callable[[str, int], object] = lambda run, epoch: None


class Upload:
    """The publisher's side of a bucket. One thread owns it."""

    def __init__(
        self,
        source: Store,
        bucket: Bucket,
        *,
        keep: int,
        stop: threading.Event,
        claim: Claim | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep` is how many of the newest versions the bucket lists. Setting `stop` ends waiting for the bucket."""
        self._clock = clock
        self.run = ""
        """The training run of the source, if the source is a bucket; the target must have it. Set before `start`."""
        self.choices: Mapping[str, Any] = {}
        """The operators' choices in the source, if the source is a bucket."""
        self._claim = Claim(secrets.token_hex(16)) if claim is None else claim
        self._source = source
        self._bucket = bucket
        self._keep = keep
        self._stop = stop
        self._held: Held | None = None
        self._warning: RemoteError | None = None
        self._ended: LastPublisher | None = None  # the publisher whose end the state says already
        self._base: _Sent | None = None  # the version that was sent last
        self._deltas: dict[int, tuple[_Delta, ...]] = {}  # by stride: deltas since the last longer delta
        self._late: dict[int, _Delta] = {}  # by stride: deltas that end at `_base`, still to be joined into longer ones
        self._is_whole_due = False  # whether `_base` is still to be sent as a whole, too
        self._count = 0  # number of commits
        self._begun = 0  # value of `_count` before the last whole version's commit, from which strides are counted
        self._whole: Whole | None = None
        self._edges: tuple[_Placed, ...] = ()
        self._graph = ("", "")  # digest and object of the last graph
        self._condemned: dict[str, float] = {}  # when each name was first seen condemned
        self._swept: frozenset[str] = frozenset()
        self._orphans: set[str] = set()  # names of written objects that no state names yet

    def start(self) -> None:
        """Take over the bucket from earlier publishers. Raises RemoteError if the server cannot run the protocol."""
        self._warning = self._bucket.probe(self._stop)
        answer = self._bucket.read()
        if self._claim.seen is None and answer is Answer.MISSING:
            self._check_alone()
        elif self.run and answer is not Answer.MISSING:
            if not isinstance(answer, Found):
                raise ConnectionError(f"{self._bucket.address}: {self._bucket.last_error}")
            self._check_run(states.from_json(answer.content).run)
        if self._stop.is_set():  # the parent program has ended, and a successor may have begun
            raise InterruptedError
        run = self.run or secrets.token_hex(16)
        steps = protocol.take_over(run, self._claim.nonce, seen=self._claim.seen)
        self._held = self._bucket.perform(steps, self._stop)
        self._claim.tell(self._held.state.run, self._held.state.epoch)
        with suppress(RemoteError, ConnectionError, FileNotFoundError):  # orphans stay if they cannot be listed
            self._orphans.update(sorted(list_orphans(self._bucket, self._held.state))[:MOST_CONDEMNED])

    def _check_run(self, run: str) -> None:
        """Raise RemoteError if a mirror from another bucket would mix the versions of two training runs."""
        address = self._bucket.address
        if self.run not in ("", run):
            expected = f"expected versions of run {run[:8]}, as in {address}"
            found = f"found those of run {self.run[:8]}; empty {address} to follow these"
            raise RemoteError(f"another training began there: {expected}, {found}")

    def _check_alone(self) -> None:
        """Raise RemoteError if a folder without a state has objects that no publisher wrote."""
        try:
            names = self._bucket.first_names()
        except (RemoteError, ConnectionError, FileNotFoundError):  # for example, no right to list
            return
        strangers = [name for name in names if name and name.partition("/")[0] not in (*FORMS, "probe")]
        if strangers:
            found = f"found {min(strangers)!r}, which is somebody else's: publish to a folder of its own"
            raise RemoteError(f"{self._bucket.address}: expected an empty folder, {found}")

    def run_once(self) -> Transfer | None:
        """Copy the newest version that the bucket lacks, but first each older version that still waits for its moment.

        One call copies at most one version, and returns None if it copied no version.

        After FencedError and EmptiedError no further call can succeed. After RemoteError, ConnectionError and errors of
        the store, the next call tries again.
        """
        if self._held is None:
            self.start()
        elif self._warning is not None:  # raised once, at the second call
            warning, self._warning = self._warning, None
            raise warning
        assert self._held is not None
        self._check_run(self._held.state.run)
        self._carry()
        self._sweep()
        self._send_late()
        version = self._source.latest()
        newest = self._held.state.newest
        if version is None:
            return None
        if newest is not None and version.number <= newest.number:
            if version.number < newest.number and not self._count:
                found = f"version {version.number} here and version {newest.number} in the bucket"
                raise RemoteError(f"expected a newer version than the bucket has, found {found}: numbers only rise")
            self.tell_end()
            return None
        if version.serve_at is not None:  # no version that waits for its moment is skipped, because each will serve
            above = -1 if newest is None else newest.number
            waiting = [one for one in self._source.versions() if (one.serve_at or 0.0) > time.time()]
            version = next((one for one in waiting if one.number > above), version)
        try:
            bundle = self._source.open(version)
        except UnknownVersionError:  # pruned meanwhile: a newer version is there
            return None
        return self._send(version, bundle)

    def tell_end(self, *, is_over: bool = False) -> None:
        """Say in the state that the publisher of the local store ended, so that nobody waits for more versions.

        `is_over` says that the caller knows already that the publisher ended.
        """
        assert self._held is not None
        note = copy_note.read(self._source.path)
        # In a local copy of a bucket the mirror has the lock, and the note says how the publisher ended.
        last = last_publisher(self._source.path) if note is None else note.publisher
        if is_over and last is not None and last.state is PublisherState.TRAINING:
            last = replace(last, state=PublisherState.DIED)  # a killed process may lose its lock a little later
        if last is None or last.state is PublisherState.TRAINING or last == self._ended:
            return
        is_known = note is not None or last.state is PublisherState.FINISHED
        at = last.since if is_known else time.time()  # a lock does not say when its owner died
        steps = protocol.commit(
            self._held, lambda state: replace(state, ended=last.state.value, ended_at=at), self._nonce()
        )
        with suppress(ConnectionError):  # the next look tries again
            with suppress(RemoteError):  # the commit of the next version, if any, will raise the error
                self._held = self._bucket.perform(
                    steps, self._stop, unknown=1
                )  # no second try: training waits at its end
            self._ended = last

    def _carry(self) -> None:
        """Write the choices of operators in the source into the state."""
        assert self._held is not None
        choices = self.choices
        if choices != self._held.state.choices.get("source", {}):
            steps = protocol.commit(
                self._held,
                lambda state: replace(state, choices={**state.choices, "source": choices}),
                self._nonce(),
            )
            self._held = self._bucket.perform(steps, self._stop)

    def _nonce(self) -> str:
        return self._claim.nonce[: protocol.WHO] + secrets.token_hex(protocol.WHO // 2)

    @property
    def has_begun(self) -> bool:
        """Whether this publisher has taken over the bucket, in this process or in an earlier one."""
        return self._held is not None or self._claim.seen is not None

    @property
    def newest(self) -> int | None:
        """Number of the newest version in the bucket."""
        newest = None if self._held is None else self._held.state.newest
        return None if newest is None else newest.number

    def _send(self, version: Version, bundle: Bundle) -> Transfer:
        assert self._held is not None
        begun = time.monotonic()
        contents = tensors.contents(bundle)
        packed = tensors.pack(bundle.entries, contents)
        if not version.checksum:  # published by TensorFlow
            version = replace(
                version,
                prefix=f"ckpt-{version.number}",
                checksum=index.digest(packed.entries),
                bytes=sum(entry.size for entry in packed.entries.values()),
            )
        sent = _Sent(version, bundle, packed)
        objects: list[_Object] = []
        graph = self._add_graph(version.graph, version.number, objects)
        size = tensors.size_of(packed)
        made = self._make_deltas(sent, contents, size)
        objects += [(delta.edge.name, delta.content, delta.edge.size) for delta in made.values()]
        sent_now = [_Placed(delta.edge, stride, self._count) for stride, delta in made.items()]
        total = sum(placed.edge.size for placed in sent_now)
        edges = tuple([placed.edge for placed in (*self._edges, *sent_now)])
        whole = self._whole
        chain = () if whole is None else manifests.route(edges, [whole.number], version.number) or ()
        # After so many commits, the deltas that start at the last whole version would soon be deleted.
        far = self._count - self._begun >= _STRIDES[-1] * (_KEPT - 1)
        length = sum(edge.size for edge in chain)
        if whole is None or not chain or length > size * _CHAIN:
            whole = self._whole_of(sent, size)
            objects.append((whole.name, tensors.stream(packed, contents), size))
            total += size
        is_whole = whole is not self._whole
        manifest = Manifest(version.to_json(), index.encode(packed), graph, whole, edges)
        content = manifest.to_json()
        name = self._name("versions", f"{version.number}.json")
        objects.append((name, content, len(content)))
        self._orphans.update(name for name, _, _ in objects)
        each(lambda placed: self._bucket.put(*placed), objects, threads=len(objects))  # in any order, before the state
        entry = Listed(version.number, name, hashlib.sha256(content).hexdigest(), at=time.time())
        change = protocol.listing(entry, manifest.objects(), self._keep, self._swept, frozenset(self._orphans))
        self._held = self._bucket.perform(protocol.commit(self._held, change, self._nonce()), self._stop)
        self._swept = frozenset()
        self._ended = None  # no longer in the state
        self._orphans.clear()
        self._graph = version.graph, graph
        self._base = sent
        useful = manifests.useful(edges, version.number, size)
        self._edges = tuple([one for one in (*self._edges, *sent_now) if one.edge in useful and self._is_recent(one)])
        self._count += 1
        self._late = {} if is_whole else made
        last = chain[-1].size if chain else size
        self._is_whole_due = far or (last < size * _SHORT and length + last > size * _CHAIN)
        if is_whole:
            self._begin_at(whole)
        way = "whole" if is_whole else "delta"
        return Transfer(version, total, size, way, len(sent_now), time.monotonic() - begun, entry.at)

    def _is_due(self, stride: int) -> bool:
        """Whether a delta over `stride` versions ends at the version committed last."""
        return (self._count - 1 - self._begun) % stride == 0

    def _is_recent(self, placed: _Placed) -> bool:
        """Whether the state keeps a delta, for late followers and for the chain from the whole version."""
        return self._count - placed.count < max(placed.stride * _KEPT, _LEAST)

    def _make_deltas(self, sent: _Sent, contents: Contents, size: int) -> dict[int, _Delta]:
        """Return the delta from the previous version, by its stride; empty if it is not worth sending."""
        base = self._base
        if base is None or not tensors.alike(base.packed.entries, sent.packed.entries):
            return {}
        entries = sent.packed.entries
        before = {
            name: contents[name] if base.bundle.marks(name) == sent.bundle.marks(name) else content
            for name, content in tensors.contents(base.bundle).items()
        }
        parts = tensors.difference(entries, before, contents)
        delta = self._make(parts, base.version.number, base.version.checksum, sent.version.number, size)
        return {} if delta is None else {_STRIDES[0]: delta}

    def _send_late(self) -> None:
        """Send the longer deltas that end at the version committed last, and its whole object if due.

        They are for late and new followers.

        The next manifest names them, because the version itself did not wait for them. Objects that cannot be sent are
        left out.
        """
        base, made, self._late = self._base, self._late, {}
        if base is None or not made:
            return
        size = tensors.size_of(base.packed)
        self._send_long_deltas(made, base.packed.entries, size)
        if self._is_whole_due:
            whole = self._whole_of(base, size)
            if self._put(whole.name, tensors.stream(base.packed, tensors.contents(base.bundle)), size):
                self._begin_at(whole)

    def _send_long_deltas(self, made: dict[int, _Delta], entries: Mapping[str, Entry], size: int) -> None:
        """Send the longer deltas that end at the version committed last. `made` has its other deltas by stride."""
        for stride, longer in pairwise(_STRIDES):
            steps = (*self._deltas.get(stride, ()), *filter(None, [made.get(stride)]))
            if self._is_due(longer) and len(steps) == longer // stride:
                first, last = steps[0].edge, steps[-1].edge
                parts = tensors.total(entries, [tensors.blocks(entries, step.content) for step in steps])
                delta = self._make(parts, first.base, first.checksum, last.number, size)
                if delta is not None and self._put(delta.edge.name, delta.content):
                    self._edges += (_Placed(delta.edge, longer, self._count - 1),)
                    made[longer] = delta
            self._deltas[stride] = () if self._is_due(longer) else steps

    def _put(self, name: str, content: memoryview | Iterable[memoryview], size: int = 0) -> bool:
        """Send an object that the next manifest names. False if it cannot be sent."""
        self._orphans.add(name)
        with suppress(RemoteError, ConnectionError):
            self._bucket.put(name, content, size)
            return True
        return False

    def _whole_of(self, sent: _Sent, size: int) -> Whole:
        number = sent.version.number
        return Whole(number, self._name("data", str(number)), size)

    def _begin_at(self, whole: Whole) -> None:
        """Count strides from the version committed last, which is in the bucket as a whole."""
        self._whole, self._begun = whole, self._count - 1
        self._deltas.clear()

    def _make(self, parts: Parts, base: int, checksum: str, number: int, size: int) -> _Delta | None:
        """Make a delta of these parts. None if a whole version, of `size` bytes, is faster to send or hardly larger."""
        whole_seconds = self._bucket.seconds(size) if size >= _LARGE else None
        begun = time.monotonic()
        covered, crc = 0, 0
        with tempfile.SpooledTemporaryFile(_SMALL) as file:  # a delta may not fit into memory
            for count, content in parts:
                file.write(content)
                crc = crc32c(content, crc)
                covered += count
                if file.tell() > size * _WORTH:
                    return None
                if whole_seconds is not None and covered > size * _SAMPLE:
                    seconds = time.monotonic() - begun + whole_seconds * file.tell() / size
                    if seconds * size > whole_seconds * covered:
                        return None
            length = file.tell()
            if length > _SMALL:
                file.flush()
                kept = memoryview(mmap.mmap(file.fileno(), length, prot=mmap.PROT_READ))
            else:
                file.seek(0)
                kept = memoryview(file.read())
        name = self._name("deltas", f"{base}-{number}")
        return _Delta(Edge(base, checksum, number, name, length, f"{crc:08x}"), kept)

    def _add_graph(self, digest: str, number: int, objects: list[_Object]) -> str:
        """Return the name of the object with a version's graph. A graph that the last version lacks joins `objects`."""
        if not digest or self._graph[0] == digest:
            return self._graph[1] if digest else ""
        name = self._name("graphs", f"{number}.pb")
        content = files.content(self._source.graph_file(digest), limit=files.MAX_MESSAGE)
        objects.append((name, content, len(content)))
        return name

    def _sweep(self) -> None:
        """Delete objects that were condemned a grace period ago. The next commit takes their names out of the state."""
        assert self._held is not None
        now = self._clock()
        condemned = frozenset(self._held.state.condemned) - self._swept
        self._condemned = {name: self._condemned.get(name, now) for name in condemned}
        oldest = sorted(self._condemned, key=lambda name: self._condemned[name])
        # Deletes the oldest early if there are too many; a follower that still needs them fetches a newer version.
        many = oldest[: max(0, len(oldest) - MOST_CONDEMNED)]
        due = frozenset([*many, *(name for name in oldest if now - self._condemned[name] >= GRACE)])
        if not due:
            return
        try:
            self._swept |= self._bucket.perform(protocol.sweep(self._held, due), self._stop)
        except (FencedError, EmptiedError):
            raise
        except (RemoteError, ConnectionError):  # versions can be published even without the right to delete
            self._condemned.update(dict.fromkeys(due, now))
            self._swept |= frozenset(many)  # taken out of the state; a later publisher lists them as orphans
            raise

    def _name(self, kind: str, name: str) -> str:
        """Return a name that nobody else uses, because it contains the run and the publisher's epoch."""
        assert self._held is not None
        state = self._held.state
        return f"{kind}/{state.epoch}/{state.run[:RUN]}-{name}"
