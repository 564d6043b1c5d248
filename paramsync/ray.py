"""Ray: deployments of Ray Serve, and actors, that follow a store or a bucket while a model is trained.

    from paramsync.ray import deployment

    serve.run(deployment("s3://bucket/models/digits").options(num_replicas=4).bind())

Replicas follow by themselves, so nothing is deployed again or reconfigured for a version. Each node has one copy
of a bucket in memory. A separate actor on the node keeps this copy, and all replicas and actors there map it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import threading
import time
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from paramsync.dtypes import Array
from paramsync.errors import (
    CorruptCheckpointError,
    InputError,
    RequestError,
    SettingsError,
    StoreLockedError,
    UnknownVersionError,
)
from paramsync.host.files import shown
from paramsync.publishing.external_values import NamedArrays
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.remote import copy_note
from paramsync.remote.bucket import is_address
from paramsync.remote.child import MirrorChild, cache_of
from paramsync.remote.in_order import buckets
from paramsync.store.store import Store, state_file, take_lock
from paramsync.version import Version

_NAMESPACE = "paramsync"
_USED_SECONDS, _LEFT_SECONDS = 10.0, 60.0  # how often users report their use; how long an unused copy is kept
_LOOK_SECONDS = 0.005  # seconds between two looks of an actor that waits for a version
_NUMBERS = 1024  # how many of the newest versions a learner counts
_NEVER = threading.Event()
# what each key of a request's body holds
_ASKED: dict[str, Any] = {"inputs": dict, "version": int, "label": str, "signature": str, "outputs": list}
_KINDS = {dict: "values by name", int: "a whole number", str: "text", list: "a list of names"}

_log = logging.getLogger("paramsync.ray")


# Ray Serve ------------------------------------------------------------------------------------------------------------


def deployment(source: str | Path, **options: Any) -> Any:
    """Return a deployment of Ray Serve whose replicas follow a store, or the address of a bucket.

    A replica is ready once a version serves. A call by a handle takes the inputs by name, and returns the outputs by
    name with the version that computed them:

        handle.remote({"image": rows}).result()  # {"outputs": {"logits": ...}, "version": 42000, "step": 42000}

    By HTTP, POST {"inputs": {...}}, with "version", "label", "signature" or "outputs" if need be. `options` are those
    of `paramsync.Replica`, such as `trust`.
    """
    _check(str(source))
    from ray import serve  # imported here, because actors need no Ray Serve

    class Model(_Served):
        def __init__(self) -> None:
            super().__init__(str(source), options)

    return serve.deployment(name="paramsync")(Model)


class _Served:
    """A replica of a deployment: follows the source, and answers calls."""

    def __init__(self, source: str, options: Mapping[str, Any]) -> None:
        from paramsync.following.follower import Follower
        from paramsync.following.replica import Replica

        self._follower = Follower(Replica("model", local_copy(source, self), **options))
        self._follower.start()
        self._follower.sync()  # a version must serve first: Ray sends calls once this constructor returns

    async def __call__(self, asked: Any) -> Any:
        """Answer a call by a handle, or a request of HTTP."""
        from starlette.requests import Request
        from starlette.responses import JSONResponse

        if not isinstance(asked, Request):
            return await self.predict(asked)
        try:
            answer = await self.predict(**_body(await asked.body()))
        except RequestError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return answer | {"outputs": {name: value.tolist() for name, value in answer["outputs"].items()}}

    async def predict(self, inputs: Mapping[str, Any], **asked: Any) -> dict[str, Any]:
        """Compute with one version, on another thread. `asked` are further arguments of `Replica.predict`."""
        if not isinstance(inputs, Mapping):
            raise InputError("inputs", expected="values by name", found=type(inputs).__name__)
        outputs, version = await asyncio.to_thread(self._follower.replica.predict, inputs, **asked)
        arrays = {name: np.asarray(tensor) for name, tensor in outputs.items()}
        return {"outputs": arrays, "version": version.number, "step": version.step}

    def check_health(self) -> None:
        """Raise NotServingError if no version serves: Ray then replaces this replica."""
        self._follower.replica.serving()

    def __del__(self) -> None:
        if hasattr(self, "_follower"):
            self._follower.close()


def _body(content: bytes) -> dict[str, Any]:
    """Read the body of a request: the arguments of `predict`. Raises InputError."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or "inputs" not in body:
        raise InputError("body", expected='a JSON object with "inputs"', found=shown(content))
    for name, value in body.items():
        if name not in _ASKED:
            raise InputError("body", expected=f"keys of {', '.join(_ASKED)}", found=shown(name))
        if type(value) is not _ASKED[name] or (name == "outputs" and not all(isinstance(each, str) for each in value)):
            raise InputError(name, expected=_KINDS[_ASKED[name]], found=shown(value))
    return body


# Actors ---------------------------------------------------------------------------------------------------------------


class LearnerPublisher(Publisher):
    """Publishes a learner's arrays by name, to a store or the address of a bucket.

    `publish(step, values={name: array})` copies arrays that training may change, unless `copy` is False. The arrays are
    written in the background.
    """

    def __init__(
        self, store: str | Path, *, schedule: PublishSchedule | None = None, copy: bool = True, **options: Any
    ) -> None:
        """`copy` and `options` mean the same as for `Publisher.of_graph`."""
        super().__init__(store, NamedArrays(copy=copy), schedule=schedule, **options)
        self._numbers = deque((version.number for version in self._store.versions()), maxlen=_NUMBERS)
        self.subscribe(lambda version: self._numbers.append(version.number))

    def accepts(self, number: int, *, most_versions: int) -> bool:
        """Return whether at most `most_versions` versions are newer than version `number`, which made a sample."""
        numbers = [*self._numbers]  # a copy, because the writing thread appends
        return len(numbers) - bisect_right(numbers, number) <= most_versions


@dataclass(frozen=True, slots=True)
class Parameters(Mapping[str, Array]):
    """The arrays of one version by name, in memory that is shared with all processes of the node and read-only."""

    version: Version
    arrays: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __iter__(self) -> Any:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


class FollowingActor:
    """A base class for Ray actors that make samples. It gives them the newest parameters.

    @ray.remote
    class Player(FollowingActor):
        def __init__(self):
            self.follow("s3://bucket/policy", most_seconds=10)

        def sample(self):
            parameters = self.parameters()
            return play(parameters), parameters.version.number
    """

    def follow(self, source: str | Path, *, most_seconds: float | None = None) -> None:
        """Follow a store or the address of a bucket. No version older than `most_seconds` is used.

        Raises SettingsError for an address that cannot be used.
        """
        self._source = str(source)
        self._store = Store(local_copy(self._source, self))
        self._most_seconds = most_seconds
        self._parameters: Parameters | None = None
        self._seen: object = None

    def parameters(self, timeout: float | None = None) -> Parameters:
        """Return the newest parameters, checked. Waits while there are no parameters, or while they are too old.

        Raises TimeoutError. Parameters that were returned before stay valid. A damaged version is logged and skipped.
        """
        if not hasattr(self, "_store"):
            raise SettingsError(f"{type(self).__name__}: expected a call of follow() before parameters()")
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self._look()
            if self._parameters is not None and not self._is_stale(self._parameters.version):
                return self._parameters
            if end is not None and time.monotonic() >= end:
                note = copy_note.read(self._store.path)
                why = f": {note.reason}" if note is not None and note.reason else ""
                raise TimeoutError(f"{self._source}: no version came within {timeout:g} s that is new enough{why}")
            _NEVER.wait(_LOOK_SECONDS)

    def _is_stale(self, version: Version) -> bool:
        age = time.time() - (version.committed_at or version.snapshot_at)
        return self._most_seconds is not None and age > self._most_seconds

    def _look(self) -> None:
        """Open and check the newest version, unless it is known already. A damaged version is skipped."""
        try:
            found = state_file(self._store.path).stat()
            seen = found.st_ino, found.st_mtime_ns, found.st_size
            if seen == self._seen or (version := self._store.latest()) is None:
                return
            if self._parameters is None or version != self._parameters.version:
                self._parameters = _read(self._store, version)
            self._seen = seen
        except (FileNotFoundError, UnknownVersionError):
            pass  # nothing is published yet, or a newer version came meanwhile
        except CorruptCheckpointError as error:
            self._seen = seen
            _log.warning("%s", error)


def _read(store: Store, version: Version) -> Parameters:
    """Open a version, and verify its checksums, unless its seal shows that the files are as the publisher left them."""
    bundle = store.open(version)
    if not version.checksum or version.seal != bundle.seal:
        bundle.verify(bundle.entries)
    arrays = {name: bundle.array(name) for name in bundle.entries}
    for array in arrays.values():
        array.flags.writeable = False  # a write would go to copied pages, which other processes do not see
    return Parameters(version, MappingProxyType(arrays))


# One copy of a bucket on each node ------------------------------------------------------------------------------------


def local_copy(source: str, owner: object) -> Path:
    """Return the directory of a store, or of this node's copy of a bucket. The copy stays as long as `owner` lives."""
    _check(source)
    if not is_address(source):
        return Path(source)
    node = ray.get_runtime_context().get_node_id()
    path = Path(ray.get(_mirror(source, node).path.remote()))
    user = threading.Thread(target=_use, args=(source, node, weakref.ref(owner)), name="paramsync copy", daemon=True)
    user.start()
    return path


def _check(source: str) -> None:
    """Raise SettingsError for an address that cannot be used, before it fails in other processes."""
    if "://" in source:
        buckets(source)


def _use(source: str, node: str, owner: weakref.ref[Any]) -> None:
    """Report again and again that the copy is in use, while `owner` lives. Restart the copy's actor if it died."""
    while owner() is not None:
        with suppress(ray.exceptions.RayError):
            ray.get(_mirror(source, node).path.remote())
        _NEVER.wait(_USED_SECONDS)


def _mirror(source: str, node: str) -> Any:
    """Return the actor on this node that keeps the copy of a bucket. Starts the actor if there is none."""
    actor = ray.remote(num_cpus=0)(_Mirror).options(
        name=f"copy of {source} on {node}",
        namespace=_NAMESPACE,
        lifetime="detached",  # otherwise the copy would end when its first user ends
        max_restarts=-1,  # Ray restarts the actor in a moment; users notice within 10 seconds only
        get_if_exists=True,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
    )
    return actor.remote(source)


class _Mirror:
    """The copy of a bucket on one node: runs a mirror until nobody has used the copy for a while."""

    def __init__(self, source: str) -> None:
        self._path = cache_of(f"{source} for ray")  # without the node's name: nodes on one host share the copy
        self._child = MirrorChild(source, str(self._path))
        self._used_at = time.monotonic()
        self._actor = ray.get_runtime_context().current_actor
        threading.Thread(target=self._end_unused, name="end unused", daemon=True).start()

    def path(self) -> str:
        """Return the directory of the copy. Each call says that the copy is in use."""
        self._used_at = time.monotonic()
        return str(self._path)

    def _end_unused(self) -> None:
        while time.monotonic() - self._used_at < _LEFT_SECONDS:
            _NEVER.wait(_USED_SECONDS)
        self._child.close(1.0)
        _remove(self._path)
        ray.kill(self._actor)  # for good, while Ray restarts an actor that dies


def _remove(path: Path) -> None:
    """Remove a copy, unless another mirror copies into it: that of another node or cluster on this host."""
    with suppress(StoreLockedError, OSError):
        lock = take_lock(path)
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
