"""Versions: maps the versions that the supervisor sends, and keeps the epochs that say which versions answer."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from paramsync import dtypes
from paramsync.errors import ParamsyncError
from paramsync.graphs.graph import Graph
from paramsync.graphs.parameters import alias
from paramsync.inference import batchable
from paramsync.inference.joined import Joiner, Pair
from paramsync.inference.resident import Resident, warm
from paramsync.version import Leaving, View

from ..processes.channel import close_all
from ..processes.messages import GraphMessage, Joining, ModelMessage, ParameterPlace, VersionMessage
from ..processes.shared_words import CallsUnderWay, CallUnderWay
from ..settings.settings import ConnectionSettings
from .mapped_files import Bytes, MappedFiles
from .models import Model

_log = logging.getLogger("paramsync.worker")
_TEND_SECONDS = 0.05  # the time between two looks for versions that no request holds
_MAPPING = 4  # versions mapped at a time, so that a large model does not delay others
_CAME_SECONDS = 0.001  # the time between two looks for an epoch that has not been shown yet
_UNMAP_SECONDS = 1.0  # the time between two looks for mappings that no version needs


@dataclass(frozen=True, eq=False)
class _SeenResident(Resident):
    """A version whose calls in progress the supervisor can see."""

    call: Callable[[], CallUnderWay] = field(kw_only=True)

    def computing(self) -> CallUnderWay:
        return self.call()


class Versions:
    """The versions and models that answer requests. See `inferencer.supervisor.epochs` for the order of messages.

    The channel's thread adds epochs, which takes no time. Threads of this class map versions and join graphs, while
    other models may swap. Any thread may call `now`, which takes no lock.
    """

    def __init__(self, word: memoryview, calls: CallsUnderWay) -> None:
        self._word = word
        self._calls = calls
        self._epochs: dict[int, Mapping[str, Model]] = {0: {}}
        # The references are weak, because each version keeps its graph alive.
        self._graphs: weakref.WeakValueDictionary[int, Graph] = weakref.WeakValueDictionary()
        self._built: Graph | None = None  # in a trial: keeps the graph alive until its version comes
        self._residents: dict[int, _SeenResident] = {}
        self._called: weakref.WeakSet[Graph] = weakref.WeakSet()
        self._joiners: list[tuple[ConnectionSettings, Joiner]] = []
        self._mapping = ThreadPoolExecutor(_MAPPING, "map")
        self._unwanted: set[int] = set()  # keys of freed versions that a thread may still be mapping
        self._files = MappedFiles()
        self._leaving: Leaving[Resident] = Leaving()
        self._freeing = threading.Event()
        self._came = threading.Event()  # set when an epoch is shown
        self.changed: Callable[[], object] = lambda: None
        """Called on the channel's thread when another epoch answers, or when statuses have changed."""
        threading.Thread(target=self._free, name="free", daemon=True).start()

    def now(self) -> Mapping[str, Model]:
        """Return the models of the epoch that answers, by name."""
        while (models := self._epochs.get(self._word[0])) is None:
            # The epoch ended between the two reads, or its message is still in the socket of this process.
            self._came.wait(_CAME_SECONDS)
            self._came.clear()
        return models

    # Messages of the supervisor ---------------------------------------------------------------------------------------

    def graph(self, message: GraphMessage, *, descriptors: Sequence[int]) -> tuple[str, frozenset[str]]:
        """Build a graph. Raises GraphError.

        Returns the graph's digest, and its embeddings: the parameters from which the graph only looks up rows.
        """
        graph = self._graphs[message.key] = self._built = self._build(message, *descriptors)
        return graph.digest, graph.embeddings

    def _build(self, message: GraphMessage, descriptor: int) -> Graph:
        try:
            content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        finally:
            os.close(descriptor)
        graph = Graph.from_bytes(content, allowed=message.allowed)
        graph.refused = message.refused
        return graph

    def version(self, message: VersionMessage, *, descriptors: Sequence[int]) -> Future[None]:
        """Map a version in addition to the current versions, and call its signatures. Raises GraphError."""
        return self._mapping.submit(self._map, message, descriptors)

    def _map(self, message: VersionMessage, descriptors: Sequence[int]) -> None:
        if message.key in self._residents:  # the version came while this process started
            close_all(descriptors)
            return
        graph_file, *files = descriptors
        try:
            graph = self._graphs.get(message.graph.key)
            if graph is None:
                graph = self._graphs[message.graph.key] = self._build(message.graph, graph_file)
            else:
                os.close(graph_file)
            mapped = []
            for number, size in enumerate(message.sizes):
                ranges = [(start, stop) for file, start, stop in message.ranges if file == number]
                mapped.append(self._files.map(files.pop(0), size, ranges))
        finally:
            close_all(files)
        parameters = tuple([alias(_array(parameter, mapped)) for parameter in message.parameters])
        call = partial(self._calls.call, message.key)
        resident = _SeenResident(message.version, graph, parameters, call=call)
        if graph not in self._called:
            warm(resident)
            batchable.examine(resident)
            self._called.add(graph)
        self._residents[message.key] = resident
        if message.key in self._unwanted:
            self._forget([message.key])

    def join(self, models: Sequence[ModelMessage]) -> Future[dict[str, Joining]]:
        """Build the graphs of joined models, and return the outcome. Answers do not change."""
        return self._mapping.submit(self._join, models)

    def _join(self, models: Sequence[ModelMessage]) -> dict[str, Joining]:
        parts = self._parts(models)
        settings = [model.settings for model in models if isinstance(model.settings, ConnectionSettings)]
        return {joined.name: self._join_parts(joined, parts)[1] for joined in settings}

    def show(self, epoch: int, models: Sequence[ModelMessage], whole: bool) -> dict[str, Joining]:
        """Add an epoch. This worker answers from the epoch once the shared word has its number.

        `models` are all models of the epoch if `whole`, otherwise the models that changed. Returns the outcome for
        joined models.
        """
        before = self._epochs[max(self._epochs)]
        kept = {} if whole else before
        parts = {**kept, **self._parts(models)}
        shown: dict[str, Model] = {}
        for message in models:
            settings = message.settings
            if isinstance(settings, ConnectionSettings):
                shown[settings.name] = self._joined(message, settings, parts, before.get(settings.name))
            else:
                shown[settings.name] = parts[settings.name]
        if whole:
            used = [model.settings for model in shown.values()]
            self._joiners = [(settings, joiner) for settings, joiner in self._joiners if settings in used]
        self._epochs[epoch] = {**kept, **shown}
        self._came.set()
        return {name: model.joining for name, model in shown.items() if model.joining is not None}

    def shown(self, epoch: int, gone: Sequence[int]) -> None:
        """Forget the epochs before `epoch`, which answers now, and the versions with the keys in `gone`."""
        oldest = min(epoch, max(self._epochs))
        self._epochs = {number: models for number, models in self._epochs.items() if number >= oldest}
        self._forget(gone)
        self.changed()

    def _forget(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._unwanted.add(key)  # before the pop, because `_map` reads this after it has added the version
            resident = self._residents.pop(key, None)
            if resident is not None:
                self._unwanted.discard(key)
                self._leaving.add(resident, resident.graph, resident.parameters)
            del resident
        self._freeing.set()

    def states(self, statuses: Mapping[str, Any]) -> None:
        """Replace statuses of followers."""
        for epoch in list(self._epochs.values()):
            for name, status in statuses.items():
                if name in epoch:
                    epoch[name].last = status
        self.changed()

    def _parts(self, models: Sequence[ModelMessage]) -> dict[str, Model]:
        parts = [message for message in models if not isinstance(message.settings, ConnectionSettings)]
        return {message.settings.name: self._model(message) for message in parts}

    def _joiner(self, settings: ConnectionSettings) -> Joiner:
        for known, joiner in self._joiners:
            if known == settings:
                return joiner
        joiner = Joiner((settings.first, settings.second), settings.inputs, settings.outputs)
        self._joiners.append((settings, joiner))
        return joiner

    def _joined(
        self, message: ModelMessage, settings: ConnectionSettings, parts: Mapping[str, Model], before: Model | None
    ) -> Model:
        """Join two models of the same epoch. If their graphs do not fit, the last pair that fitted goes on serving."""
        pair, joining = self._join_parts(settings, parts)
        view: View[Resident] = View()
        if pair is not None and not joining.reason:
            first, joiner = pair[0], self._joiner(settings)
            view = parts[settings.second].view.mapped(lambda second: joiner.joined((first, second)))
        elif pair is not None and before is not None and before.joining is not None:
            view, joining = before.view, Joining(joining.reason, before.joining.versions)
        return Model(settings, view, message.status, awaited=message.awaited, joining=joining)

    def _join_parts(self, settings: ConnectionSettings, parts: Mapping[str, Model]) -> tuple[Pair | None, Joining]:
        """Join the graphs of the serving versions. Returns the pair (None if a part is missing) and the outcome."""
        both = parts[settings.first], parts[settings.second]
        missing = [part for part in both if not part.view.recent]
        if missing:
            return None, Joining(", ".join(map(_absent, missing)))
        pair = both[0].view.recent[0], both[1].view.recent[0]
        try:
            self._joiner(settings).build(pair)
        except ParamsyncError as error:
            return pair, Joining(str(error))
        return pair, Joining("", (pair[0].version, pair[1].version))

    def _model(self, message: ModelMessage) -> Model:
        residents = self._residents
        view: View[Resident] = View(
            tuple([residents[key] for key in message.recent]),
            {label: residents[key] for label, key in message.labels.items()},
            tuple([residents[key] for key in message.beside]),
        )
        return Model(message.settings, view, message.status, awaited=message.awaited)

    def _free(self) -> None:
        """Free versions that no request holds. On a request's thread, this would delay the answer."""
        pause = None
        while True:
            self._freeing.wait(pause)
            self._freeing.clear()
            while self._leaving.tend():
                self._freeing.wait(_TEND_SECONDS)
            pause = _UNMAP_SECONDS if self._files.tend() else None


def _absent(part: Model) -> str:
    reason = f", {part.last.short_reason}" if part.last.short_reason else ""
    return f"part {part.name!r} has no version yet (store {part.last.store}{reason})"


def _array(parameter: ParameterPlace | Any, files: Sequence[Bytes]) -> np.ndarray[Any, Any]:
    if not isinstance(parameter, ParameterPlace):
        return parameter  # type: ignore[no-any-return]
    dtype = dtypes.to_numpy(parameter.dtype)
    assert dtype is not None  # the supervisor has checked the dtype
    size = int(np.prod(parameter.shape, dtype=np.int64)) * dtype.itemsize
    file = files[parameter.file]
    return file[parameter.offset : parameter.offset + size].view(dtype).reshape(parameter.shape)
