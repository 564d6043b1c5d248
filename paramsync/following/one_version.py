"""latest(): one version of a model for a whole job, for example of Dask, Spark, Beam or a notebook."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from paramsync.dtypes import Array
from paramsync.errors import NotServingError, SettingsError, UnknownLabelError, UnknownVersionError
from paramsync.graphs.specs import DEFAULT_SIGNATURE
from paramsync.host import files
from paramsync.inference.resident import Resident
from paramsync.remote.bucket import Bucket, is_address
from paramsync.remote.child import memory
from paramsync.remote.excerpt import Excerpt, find
from paramsync.sources.opening import open_source
from paramsync.sources.source import Source
from paramsync.status import nothing_serves
from paramsync.version import Version

_ADVICE = "have workers compute with a version that stays: label it, and name it by latest(..., label=...)"
_PROCESS = os.getpid()  # a forked child differs: it has none of the threads of TensorFlow and of the bucket's client
_MOST_OPEN = 2  # a worker process keeps the versions of this many jobs open for later tasks


class OneVersion:
    """One version of a model, made by `latest`. Any number of threads and processes may use it.

    A pickled copy contains the place and number of the version and the options, but no parameters. Each process opens
    the version at its first prediction, and keeps the version for later tasks. A version in a bucket is fetched first.
    A forked process, where TensorFlow and the bucket's client would wait for ever, is refused with SettingsError.
    Leaving the `with` block closes the version in this process.
    """

    def __init__(self, place: str, number: int, options: Mapping[str, Any]) -> None:
        self.place = place
        self.number = number
        self._options = dict(options)
        self._lock = threading.Lock()
        self._resident: Resident | None = None

    @property
    def version(self) -> Version:
        """The record of the version."""
        return self._open().version

    def predict(
        self, inputs: Mapping[str, Any], *, signature: str = DEFAULT_SIGNATURE, outputs: Collection[str] = ()
    ) -> dict[str, Array]:
        """Compute with this version. Raises as `Resident.predict` does; UnknownVersionError for a removed version."""
        answer = self._open().predict(inputs, signature=signature, outputs=outputs)
        return {name: np.asarray(tensor) for name, tensor in answer.items()}

    def close(self) -> None:
        with self._lock:
            self._resident = None

    def __enter__(self) -> OneVersion:
        self._open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_this_process, (self.place, self.number, tuple(sorted(self._options.items())))

    def __repr__(self) -> str:
        return f"<version {self.number} of {self.place}>"

    def _open(self) -> Resident:
        if os.getpid() != _PROCESS and (self._resident or is_address(self.place)):
            raise SettingsError(f"{self!r}: a forked process cannot use it; start workers by spawn or forkserver")
        if (resident := self._resident) is None:
            with self._lock:
                resident = self._resident = self._resident or self._restored()
        return resident

    def _restored(self) -> Resident:
        if not is_address(self.place):
            return self._from(Path(self.place))
        bucket = Bucket(self.place)
        with Excerpt(bucket, folder=memory()) as excerpt:  # removes the files at the end; their content stays mapped
            excerpt.fetch(find(bucket, bucket.state(), self.number, _ADVICE))
            return self._from(excerpt.store.path)

    def _from(self, path: Path) -> Resident:
        source = open_source(path, **self._options)
        return source.restore(_found(source, self.number))


def latest(source: Path | str, *, version: int | None = None, label: str = "", **options: Any) -> OneVersion:
    """Return one version of a store or bucket for a whole job: by default the newest, or a bucket's pinned version.

        with paramsync.latest("s3://bucket/models/digits") as model:
            scores = model.predict({"x": rows})["scores"]
            print("computed with version", model.number)

    Versions that are published later change nothing, but the version has to be there until the last worker has opened
    it. `label` selects the version with this label in the bucket, which stays as long as it has the label. `options`
    are those of `open_source`, such as `trust`. Raises SettingsError, UnknownVersionError and UnknownLabelError;
    RemoteError or NotServingError if nothing is published.
    """
    place = str(source)
    if is_address(place):
        return OneVersion(place, _in_bucket(Bucket(place), version, label), options)
    if label:
        raise SettingsError(f"label: expected a bucket, whose versions have labels, found {files.shown(place)}")
    opened = open_source(Path(place).absolute(), **options)
    return OneVersion(str(opened.path), _found(opened, version).number, options)


def _in_bucket(bucket: Bucket, version: int | None, label: str) -> int:
    state = bucket.state()
    if label and label not in state.labels:
        raise UnknownLabelError(bucket.address, label, state.labels)
    chosen = state.labels[label] if label else state.pinned if version is None else version
    return find(bucket, state, chosen).number


def _found(source: Source[Resident], number: int | None) -> Version:
    look = source.look()
    if number is not None:
        for candidate in look.published or ():
            if candidate.number == number:
                return candidate.version
        raise UnknownVersionError(str(source.path), number, look.numbers or ())
    if look.latest is None:
        raise look.problem or NotServingError("", nothing_serves(source.path, "nothing is published there"))
    return look.latest


@lru_cache(_MOST_OPEN)
def _in_this_process(place: str, number: int, options: tuple[tuple[str, Any], ...]) -> OneVersion:
    """Return the same object for each pickled copy, so that a worker opens the version only once."""
    return OneVersion(place, number, dict(options))
