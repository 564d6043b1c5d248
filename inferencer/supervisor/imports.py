"""Imports of versions that others wrote, by a process that has TensorFlow and may end, hang or grow."""

from __future__ import annotations

import os
import queue
from concurrent.futures import Future
from pathlib import Path

from paramsync.errors import GraphError
from paramsync.sources.source import Progress, ProgressCallback
from paramsync.version import Version

from ..processes.channel import ClosedError
from ..processes.messages import Imported, VersionMessage
from ..settings.settings import ModelSettings
from .child import ChildProcess
from .fleet import Fleet
from .shared import SharedFiles
from .versions import GraphFacts, KnownGraphs, SharedVersion, facts

_QUIET_SECONDS = 120.0  # without a word of progress, after which it is held to hang


class Importer:
    """Of one model. For the thread of its follower."""

    def __init__(self, settings: ModelSettings, fleet: Fleet, graphs: KnownGraphs) -> None:
        self._settings = settings
        self._fleet = fleet
        self._graphs = graphs

    def restored(self, version: Version, directory: Path, tell: ProgressCallback) -> SharedVersion:
        """See SavedModelsSource."""
        return self.restore(version, tell)

    def restore(self, version: Version, tell: ProgressCallback) -> SharedVersion:
        """Raises as Source.restore does, and GraphError where it ends the process, or where that hangs."""
        graph, parameters = (os.memfd_create(name) for name in ("graph", "parameters"))
        try:
            found = self._imported(version, tell, graph, parameters)
            content = os.pread(graph, os.fstat(graph).st_size, 0)
        except BaseException:
            os.close(parameters)
            raise
        finally:
            os.close(graph)
        known = self._known(content, found)
        message = VersionMessage(
            key=self._fleet.key(),
            version=version,
            graph=known.shared.key,
            sizes=(found.size,),
            parameters=found.parameters,
            ranges=((0, 0, found.size),) if found.size else (),
        )
        return SharedVersion(version, known, SharedFiles(known.shared, message, (parameters,)), None)

    def _known(self, content: bytes, found: Imported) -> GraphFacts:
        def made() -> GraphFacts:
            shared = self._fleet.graph(content, allowed=self._settings.allowed, refused=found.refused)
            return facts(content, shared, found.digest, found.embeddings, found.refused)

        return self._graphs.find((found.digest, tuple(sorted(found.refused.items()))), made)

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
            raise importer.ended(f"version {version.number} ended the process that imported it") from error
        finally:
            importer.kill()
