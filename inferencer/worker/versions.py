"""Versions: what the supervisor sent, mapped, and which of it answers now."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paramsync import dtypes
from paramsync.errors import ParamsyncError
from paramsync.graphs.graph import Graph
from paramsync.graphs.parameters import alias
from paramsync.inference import batchable
from paramsync.inference.joined import Joiner, Pair
from paramsync.inference.resident import Resident, warm
from paramsync.inference.view import View

from ..processes.channel import close_all
from ..processes.messages import GraphMessage, Joining, ModelMessage, Place, VersionMessage
from ..settings.settings import ConnectionSettings
from .mapped_files import Bytes, MappedFiles
from .models import Model

_log = logging.getLogger("paramsync.worker")
_TEND_SECONDS = 0.05  # between two looks whether a request still holds what is to be freed
_UNMAP_SECONDS = 1.0  # between two looks for mappings that nothing needs any more


class Versions:
    """What requests find: `now` may be read by any thread, and takes no lock. All else is for one thread.

    Several epochs are known at a time. The one that answers is the one that the word in shared memory names, which the
    supervisor changes once every worker knows the next.
    """

    def __init__(self, word: memoryview) -> None:
        self._word = word
        self._epochs: dict[int, Mapping[str, Model]] = {0: {}}
        self._graphs: dict[int, Graph] = {}
        self._residents: dict[int, Resident] = {}
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

    def graph(self, said: GraphMessage, *, descriptors: Sequence[int]) -> tuple[str, frozenset[str]]:
        """Build a graph. Returns its digest, and the parameters of which it only looks up rows. Raises GraphError."""
        try:
            content = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
        finally:
            close_all(descriptors)
        graph = Graph.from_bytes(content, allowed=said.allowed)
        graph.refused = said.refused
        self._graphs[said.key] = graph
        return graph.digest, graph.embeddings

    def version(self, said: VersionMessage, *, descriptors: Sequence[int] = ()) -> None:
        """Map a version beside what answers, and call its graph once where it is new."""
        given = list(descriptors)
        try:
            graph = self._graphs[said.graph]
            files = []
            for number, size in enumerate(said.sizes):
                ranges = [(start, stop) for file, start, stop in said.ranges if file == number]
                files.append(self._files.map(given.pop(0), size, ranges))
        finally:
            close_all(given)
        parameters = tuple([alias(_array(one, files)) for one in said.parameters])
        resident = Resident(said.version, graph, parameters)
        if graph not in self._called:
            warm(resident)
            batchable.examine(resident)
            self._called.add(graph)
        self._residents[said.key] = resident

    def join(self, models: Sequence[ModelMessage]) -> dict[str, Joining]:
        """Have the graphs of models that are joined, which takes as long as for any new graph. Returns what came of it.

        Nothing that answers changes.
        """
        parts = self._parts(models)
        return {
            one.settings.name: self._built(one.settings, parts)[1]
            for one in models
            if isinstance(one.settings, ConnectionSettings)
        }

    def show(self, epoch: int, models: Sequence[ModelMessage]) -> dict[str, Joining]:
        """Know an epoch, which answers once the word says so. Returns what came of models that are joined."""
        parts = self._parts(models)
        before = self._epochs[max(self._epochs)]
        found: dict[str, Model] = {}
        for one in models:
            name = one.settings.name
            if isinstance(one.settings, ConnectionSettings):
                found[name] = self._joined(one, one.settings, parts, before.get(name))
            else:
                found[name] = parts[name]
        self._epochs[epoch] = found
        self._joiners = {name: one for name, one in self._joiners.items() if name in found}
        return {name: one.joining for name, one in found.items() if one.joining is not None}

    def shown(self, epoch: int, keys: Sequence[int], graphs: Sequence[int]) -> None:
        """The epoch answers now. Forget those before it, and versions and graphs other than these."""
        self._epochs = {number: one for number, one in self._epochs.items() if number >= epoch}
        for key in self._residents.keys() - set(keys):
            gone = self._residents.pop(key)
            self._leaving.append((weakref.ref(gone), (gone.graph, gone.parameters)))
            del gone
        self._graphs = {key: one for key, one in self._graphs.items() if key in graphs}
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
        return {
            one.settings.name: self._model(one) for one in models if not isinstance(one.settings, ConnectionSettings)
        }

    def _joiner(self, settings: ConnectionSettings) -> Joiner:
        known = self._joiners.get(settings.name)
        if known is None or known[0] != settings:
            joiner = Joiner((settings.first, settings.second), settings.inputs, settings.outputs)
            known = self._joiners[settings.name] = (settings, joiner)
        return known[1]

    def _joined(
        self, said: ModelMessage, settings: ConnectionSettings, parts: Mapping[str, Model], before: Model | None
    ) -> Model:
        """Two models of the same epoch as one. Where they do not fit, what was joined last goes on serving."""
        pair, joining = self._built(settings, parts)
        if pair is None:
            return Model(settings, View(), said.status, awaited=said.awaited, joining=joining)
        if joining.problem:
            if before is not None and before.joining is not None:
                view, joining = before.view, Joining(joining.problem, before.joining.versions)
            else:
                view = View()
            return Model(settings, view, said.status, awaited=said.awaited, joining=joining)
        joiner = self._joiner(settings)

        def with_first(residents: Sequence[Resident]) -> list[Resident]:
            found = (joiner.joined((pair[0], one)) for one in residents)
            return [one for one in found if one is not None]

        second = parts[settings.second].view
        labels = {label: joiner.joined((pair[0], one)) for label, one in second.labels.items()}
        view = View(
            tuple(with_first(second.recent)),
            {label: one for label, one in labels.items() if one is not None},
            tuple(with_first(second.beside)),
        )
        return Model(settings, view, said.status, awaited=said.awaited, joining=joining)

    def _built(self, settings: ConnectionSettings, parts: Mapping[str, Model]) -> tuple[Pair | None, Joining]:
        """The versions that are joined, and what came of that."""
        pair = _serving(settings, parts)
        if pair is None:
            missing = [parts[name] for name in (settings.first, settings.second) if not parts[name].view.recent]
            return None, Joining(_absent(missing))
        try:
            self._joiner(settings).build(pair)
        except ParamsyncError as error:
            return pair, Joining(str(error))
        return pair, Joining("", (pair[0].version, pair[1].version))

    def _model(self, said: ModelMessage) -> Model:
        found = self._residents
        view = View(
            tuple([found[key] for key in said.recent]),
            {label: found[key] for label, key in said.labels.items()},
            tuple([found[key] for key in said.beside]),
        )
        return Model(said.settings, view, said.status, awaited=said.awaited)

    def _free(self) -> None:
        """Versions that have left are freed here, not on the thread whose request was the last to hold them."""
        pause = None
        while True:
            self._freeing.wait(pause)
            self._freeing.clear()
            while self._leaving:
                self._leaving = [one for one in self._leaving if one[0]() is not None]
                self._freeing.wait(_TEND_SECONDS)
            pause = _UNMAP_SECONDS if self._files.tend() else None


def _serving(settings: ConnectionSettings, parts: Mapping[str, Model]) -> Pair | None:
    first, second = (parts[name].view.recent[:1] for name in (settings.first, settings.second))
    return (first[0], second[0]) if first and second else None


def _absent(parts: Sequence[Model]) -> str:
    said = ((one, f", {one.last.obstacle}" if one.last.obstacle else "") for one in parts)
    return ", ".join(f"part {one.name!r} has no version yet (store {one.last.store}{why})" for one, why in said)


def _array(said: Place | Any, files: Sequence[Bytes]) -> np.ndarray[Any, Any]:
    if not isinstance(said, Place):
        return said  # type: ignore[no-any-return]
    dtype = dtypes.to_numpy(said.dtype)
    assert dtype is not None  # the supervisor has looked
    size = int(np.prod(said.shape, dtype=np.int64)) * dtype.itemsize
    return files[said.file][said.offset : said.offset + size].view(dtype).reshape(said.shape)
