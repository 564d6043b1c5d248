"""Brings versions to the workers: checks a version in the supervisor and sends its locked files, or imports it."""

from __future__ import annotations

import os
import queue
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from paramsync.checkpoint.reader import Bundle
from paramsync.errors import GraphError
from paramsync.following.residents import Residents
from paramsync.sources.checkpoints import Checkpoints
from paramsync.sources.source import Progress, ProgressCallback, Source, graph_options
from paramsync.store.signing import TrustedKeys
from paramsync.store.store import Store
from paramsync.version import Version

from ..processes.channel import ClosedError
from ..processes.messages import Imported, ParameterPlace, VersionMessage
from ..settings.settings import ModelSettings
from .child import ChildProcess
from .fleet import Fleet
from .shared import SharedGraph, SharedVersion

_QUIET_SECONDS = 120.0  # an importer without progress for this time counts as hanging


class SharedResidents(Residents[SharedVersion]):
    """The versions of one model that the workers answer from."""

    def __init__(self, settings: ModelSettings, fleet: Fleet) -> None:
        self._fleet = fleet
        self.crashing: dict[int, str] = {}
        """The reasons for crashes of workers, by the key of the version that they computed. Versions of other models
        may be among them. Any thread may add entries."""
        self._restores = restores = SharedRestores(settings, fleet)
        options = graph_options(settings.graph, settings.inputs)
        source = Source(settings.store, restores, graph=settings.graph, options=options, signed=bool(settings.trust))
        changed = partial(fleet.epochs.change, settings.name)
        super().__init__(settings.name, source, resident=settings.resident, changed=changed)

    @property
    def trouble(self) -> str:
        return self._fleet.workers.trouble

    def failing(self) -> dict[SharedVersion, str]:
        by_key = {version.message.key: version for version in self.residents}
        reasons = {key: self.crashing.pop(key) for key in list(self.crashing)}
        return {by_key[key]: reason for key, reason in reasons.items() if key in by_key}

    def tend(self) -> None:
        before = self.leaving
        super().tend()
        if self.leaving != before:
            self._fleet.epochs.forget()

    def release(self) -> None:
        super().release()
        self._restores.graphs.clear()  # at once, because each graph keeps a file open


class SharedRestores(Checkpoints[SharedGraph, SharedVersion]):
    """Restores versions for the workers. Checkpoints that name their graph are sent unchanged.

    A process with TensorFlow imports all other versions, because an import may crash, hang or use much memory.
    """

    answers_here = False

    def __init__(self, settings: ModelSettings, fleet: Fleet) -> None:
        trust = TrustedKeys(settings.trust) if settings.trust else None
        super().__init__(Store(settings.store), verification=settings.verify, trust=trust)
        self._fleet = fleet
        self._settings = settings

    def build_graph(self, content: bytes) -> tuple[SharedGraph, str]:
        graph = self._fleet.trials.graph(content, allowed=self._settings.allowed)
        digest, embeddings = self._fleet.trials.build(graph)
        return graph.describe(content, embeddings), digest

    def make_resident(self, version: Version, graph: SharedGraph, bundle: Bundle, keys: Sequence[str]) -> SharedVersion:
        named = zip(graph.parameters, keys, strict=True)
        loan = bundle.lend(keys, [key for spec, key in named if spec.name not in graph.embeddings])
        message = VersionMessage(
            key=self._fleet.trials.key(),
            version=version,
            graph=graph.message,
            sizes=loan.sizes,
            parameters=[ParameterPlace(*place) if isinstance(place, tuple) else place for place in loan.places],
            ranges=loan.ranges,
        )
        return SharedVersion(graph, message, loan.descriptors, bundle, keys if self.trust is None else ())

    def copy_unrecorded(self, version: Version, tell: ProgressCallback) -> SharedVersion:
        return self._import(version, tell)

    def copy_saved_model(self, version: Version, directory: Path, tell: ProgressCallback) -> SharedVersion:
        return self._import(version, tell)

    def warm(self, resident: SharedVersion, tell: ProgressCallback) -> SharedVersion:
        """Have every worker map the version."""
        self._fleet.prepare(resident, lambda: tell(Progress(phase="warming")))
        return resident

    def _import(self, version: Version, tell: ProgressCallback) -> SharedVersion:
        """Import a version. Raises the errors of Source.restore, GraphError if the process hangs, and the error of
        ChildProcess.fault if the process ends."""
        graph_file, parameters = (os.memfd_create(name) for name in ("graph", "parameters"))
        try:
            imported = self._imported(version, tell, graph_file, parameters)
            content = os.pread(graph_file, os.fstat(graph_file).st_size, 0)
        except BaseException:
            os.close(parameters)
            raise
        finally:
            os.close(graph_file)

        def make_graph() -> SharedGraph:
            made = self._fleet.trials.graph(content, allowed=self._settings.allowed, refused=imported.refused)
            return made.describe(content, imported.embeddings)

        graph = self.graphs.find_or_build((imported.digest, tuple(sorted(imported.refused.items()))), make_graph)
        message = VersionMessage(
            key=self._fleet.trials.key(),
            version=version,
            graph=graph.message,
            sizes=(imported.size,),
            parameters=imported.parameters,
            ranges=((0, 0, imported.size),) if imported.size else (),
        )
        return SharedVersion(graph, message, (parameters,))

    def _imported(self, version: Version, tell: ProgressCallback, *descriptors: int) -> Imported:
        news: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
        importer = ChildProcess(self._fleet.template, "importer", self._settings, handlers={"progress": news.put})
        try:
            answer: Future[Imported] = importer.channel.ask("restore", version, descriptors=descriptors)
            answer.add_done_callback(lambda _: news.put(None))
            while (progress := news.get(timeout=_QUIET_SECONDS)) is not None:
                tell(progress)
            return answer.result()
        except queue.Empty as error:
            raise GraphError(f"version {version.number} was not imported: no word for {_QUIET_SECONDS:g} s") from error
        except ClosedError as error:
            raise importer.fault(f"importing version {version.number}") from error
        finally:
            importer.kill()
