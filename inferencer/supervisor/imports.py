"""Imports versions that other programs wrote, in a process with TensorFlow, which may crash, hang or grow."""

from __future__ import annotations

import os
import queue
from concurrent.futures import Future

from paramsync.errors import GraphError
from paramsync.sources.checkpoints import GraphCache
from paramsync.sources.source import Progress, ProgressCallback
from paramsync.version import Version

from ..processes.channel import ClosedError
from ..processes.messages import Imported, VersionMessage
from ..settings.settings import ModelSettings
from .child import ChildProcess
from .fleet import Fleet
from .shared import SharedGraph, SharedVersion

_QUIET_SECONDS = 120.0  # without progress for this time, the process counts as hanging


class Importer:
    """Imports versions of one model, on the thread of its follower."""

    def __init__(self, settings: ModelSettings, fleet: Fleet, graphs: GraphCache[SharedGraph]) -> None:
        self._settings = settings
        self._fleet = fleet
        self._graphs = graphs

    def restore(self, version: Version, tell: ProgressCallback) -> SharedVersion:
        """Import a version. Raises the errors of Source.restore, and GraphError if the process ends or hangs."""
        graph, parameters = (os.memfd_create(name) for name in ("graph", "parameters"))
        try:
            imported = self._imported(version, tell, graph, parameters)
            content = os.pread(graph, os.fstat(graph).st_size, 0)
        except BaseException:
            os.close(parameters)
            raise
        finally:
            os.close(graph)
        shared = self._known(content, imported)
        message = VersionMessage(
            key=self._fleet.trials.key(),
            version=version,
            graph=shared.message,
            sizes=(imported.size,),
            parameters=imported.parameters,
            ranges=((0, 0, imported.size),) if imported.size else (),
        )
        return SharedVersion(shared, message, (parameters,))

    def _known(self, content: bytes, imported: Imported) -> SharedGraph:
        def made() -> SharedGraph:
            graph = self._fleet.trials.graph(content, allowed=self._settings.allowed, refused=imported.refused)
            return graph.describe(content, imported.embeddings)

        return self._graphs.find_or_build((imported.digest, tuple(sorted(imported.refused.items()))), made)

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
