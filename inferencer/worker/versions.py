"""Versions: what the supervisor sent, mapped, and which of it answers now."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
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
from paramsync.version import View

from ..processes.channel import close_all
from ..processes.messages import GraphMessage, Joining, ModelMessage, ParameterPlace, VersionMessage
from ..processes.shared_words import CallsUnderWay, CallUnderWay
from ..settings.settings import ConnectionSettings
from .mapped_files import Bytes, MappedFiles
from .models import Model

_log = logging.getLogger("paramsync.worker")
_TEND_SECONDS = 0.05  # between two looks whether a request still holds what is to be freed
_UNMAP_SECONDS = 1.0  # between two looks for mappings that nothing needs any more


@dataclass(frozen=True, eq=False)
class _SeenResident(Resident):
    """The supervisor sees when it is computed."""

    call: Callable[[], CallUnderWay] = field(kw_only=True)

    def computing(self) -> CallUnderWay:
        return self.call()


class Versions:
    """What requests are answered from. `now` may be called by any thread and takes no lock; all else is for one thread.

    Several epochs are known at a time. The word in shared memory names the one that answers; the supervisor changes it
    once every worker knows the next one.
    """

    def __init__(self, word: memoryview, calls: CallsUnderWay) -> None:
        self._word = word
        self._calls = calls
        self._epochs: dict[int, Mapping[str, Model]] = {0: {}}
        self._graphs: weakref.WeakValueDictionary[int, Graph] = weakref.WeakValueDictionary()  # of versions
        self._built_last: Graph | None = None  # whose first version may be still to come
        self._residents: dict[int, Resident] = {}
        self._graph_keys: dict[int, int] = {}  # of the graphs of these
        self._called: weakref.WeakSet[Graph] = weakref.WeakSet()
        self._joiners: dict[str, tuple[ConnectionSettings, Joiner]] = {}
        self._files = MappedFiles()
        self._leaving: list[tuple[weakref.ref[Resident], tuple[Any, ...]]] = []
        self._freeing = threading.Event()
        self.changed: Callable[[], object] = lambda: None
        """Called, on the thread that maps, when another epoch answers."""
        threading.Thread(target=self._free, name="free", daemon=True).start()

    def now(self) -> Mapping[str, Model]:
        """The models of the epoch that answers, by name."""
        while True:
            try:
                return self._epochs[self._word[0]]
            except KeyError:  # it was over between the two looks
                continue

    # What the supervisor says -----------------------------------------------------------------------------------------

    def graph(self, message: GraphMessage, *, descriptors: Sequence[int]) -> tuple[str, frozenset[str]]:
        """Build a graph. Returns its digest, and the parameters of which it only looks up rows. Raises GraphError."""
        try:
            content = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
        finally:
            close_all(descriptors)
        graph = Graph.from_bytes(content, allowed=message.allowed)
        graph.refused = message.refused
        self._graphs[message.key] = self._built_last = graph
        return graph.digest, graph.embeddings

    def version(self, message: VersionMessage, *, descriptors: Sequence[int]) -> None:
        """Map a version beside what answers; where its graph is new, build it and call it once. Raises GraphError."""
        graph_file, *files = descriptors
        try:
            if message.graph.key in self._graphs:
                os.close(graph_file)
            else:
                self.graph(message.graph, descriptors=[graph_file])
            graph = self._graphs[message.graph.key]
            mapped = []
            for number, size in enumerate(message.sizes):
                ranges = [(start, stop) for file, start, stop in message.ranges if file == number]
                mapped.append(self._files.map(files.pop(0), size, ranges, graph=message.graph.key))
        finally:
            close_all(files)
        parameters = tuple([alias(_array(parameter, mapped)) for parameter in message.parameters])
        resident = _SeenResident(message.version, graph, parameters, call=partial(self._calls.call, message.key))
        if graph not in self._called:
            warm(resident)
            batchable.examine(resident)
            self._called.add(graph)
        self._residents[message.key] = resident
        self._graph_keys[message.key] = message.graph.key

    def join(self, models: Sequence[ModelMessage]) -> dict[str, Joining]:
        """Build the graphs of joined models, and return the outcome. What answers does not change."""
        parts = self._parts(models)
        settings = [model.settings for model in models if isinstance(model.settings, ConnectionSettings)]
        return {joined.name: self._built(joined, parts)[1] for joined in settings}

    def show(self, epoch: int, models: Sequence[ModelMessage]) -> dict[str, Joining]:
        """Know an epoch, which answers once the word names it. Returns what became of joined models."""
        parts = self._parts(models)
        before = self._epochs[max(self._epochs)]
        shown: dict[str, Model] = {}
        for message in models:
            settings = message.settings
            if isinstance(settings, ConnectionSettings):
                shown[settings.name] = self._joined(message, settings, parts, before.get(settings.name))
            else:
                shown[settings.name] = parts[settings.name]
        self._epochs[epoch] = shown
        self._joiners = {name: joiner for name, joiner in self._joiners.items() if name in shown}
        return {name: model.joining for name, model in shown.items() if model.joining is not None}

    def shown(self, epoch: int, keys: Sequence[int]) -> None:
        """The epoch answers now: forget those before it, and versions other than these."""
        self._epochs = {number: models for number, models in self._epochs.items() if number >= epoch}
        for key in self._residents.keys() - set(keys):
            gone = self._residents.pop(key)
            del self._graph_keys[key]
            self._leaving.append((weakref.ref(gone), (gone.graph, gone.parameters)))
            del gone
        self._built_last = None
        self._files.graphs = {*self._graph_keys.values()}
        self._freeing.set()
        self.changed()

    def states(self, statuses: Mapping[str, Any]) -> None:
        """What the followers report now."""
        for epoch in list(self._epochs.values()):
            for name, status in statuses.items():
                if name in epoch:
                    epoch[name].last = status
        self.changed()

    def _parts(self, models: Sequence[ModelMessage]) -> dict[str, Model]:
        parts = [message for message in models if not isinstance(message.settings, ConnectionSettings)]
        return {message.settings.name: self._model(message) for message in parts}

    def _joiner(self, settings: ConnectionSettings) -> Joiner:
        known = self._joiners.get(settings.name)
        if known is None or known[0] != settings:
            joiner = Joiner((settings.first, settings.second), settings.inputs, settings.outputs)
            known = self._joiners[settings.name] = (settings, joiner)
        return known[1]

    def _joined(
        self, message: ModelMessage, settings: ConnectionSettings, parts: Mapping[str, Model], before: Model | None
    ) -> Model:
        """Two models of the same epoch as one. Where they do not fit, what was joined last goes on serving."""
        pair, joining = self._built(settings, parts)
        view: View[Resident] = View()
        if pair is not None and not joining.reason:
            first, joiner = pair[0], self._joiner(settings)
            view = parts[settings.second].view.mapped(lambda second: joiner.joined((first, second)))
        elif pair is not None and before is not None and before.joining is not None:
            view, joining = before.view, Joining(joining.reason, before.joining.versions)
        return Model(settings, view, message.status, awaited=message.awaited, joining=joining)

    def _built(self, settings: ConnectionSettings, parts: Mapping[str, Model]) -> tuple[Pair | None, Joining]:
        """The versions to join, with their graph built, and the outcome."""
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
        view = View(
            tuple([residents[key] for key in message.recent]),
            {label: residents[key] for label, key in message.labels.items()},
            tuple([residents[key] for key in message.beside]),
        )
        return Model(message.settings, view, message.status, awaited=message.awaited)

    def _free(self) -> None:
        """Free versions that have left: the thread of the last request that held one does not pay for it."""
        pause = None
        while True:
            self._freeing.wait(pause)
            self._freeing.clear()
            while self._leaving:
                self._leaving = [leaving for leaving in self._leaving if leaving[0]() is not None]
                self._freeing.wait(_TEND_SECONDS)
            pause = _UNMAP_SECONDS if self._files.tend() else None


def _absent(part: Model) -> str:
    reason = f", {part.last.short_reason}" if part.last.short_reason else ""
    return f"part {part.name!r} has no version yet (store {part.last.store}{reason})"


def _array(parameter: ParameterPlace | Any, files: Sequence[Bytes]) -> np.ndarray[Any, Any]:
    if not isinstance(parameter, ParameterPlace):
        return parameter  # type: ignore[no-any-return]
    dtype = dtypes.to_numpy(parameter.dtype)
    assert dtype is not None  # the supervisor has looked
    size = int(np.prod(parameter.shape, dtype=np.int64)) * dtype.itemsize
    file = files[parameter.file]
    return file[parameter.offset : parameter.offset + size].view(dtype).reshape(parameter.shape)
