"""`python -m bench freshness`: the time from the end of a step to the first answer from its parameters."""

from __future__ import annotations

import abc
import queue
import random
import shutil
import statistics
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from bench import arrays
from bench.asker import Asker
from bench.formats import Saver
from bench.model import KEEP, WARM_UPS, Subject
from bench.progress import Progress
from bench.served import MODEL, Served, request
from bench.settings import Settings
from bench.timing import Contestant, measure
from bench.training import MANUAL
from paramsync.publishing.publisher import Publisher
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb

_ALONE = 10  # rounds of ours alone for each round with peers: the 99th percentile needs many rounds
_PHASES = ("pin", "publish", "notice", "restore", "answer")
_REQUEST = request({"x": np.ones(1, np.float32)})
_PATIENCE = 30.0


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Measure ours alone, then ours and the peers by turns."""
    with Progress() as progress, ExitStack() as stack:
        progress.say("making the parameters")
        values = arrays.random(arrays.shapes(settings.bytes, settings.tensors), seed=0)
        subject = Subject(values, frozen=settings.tensors * settings.frozen // 100)
        progress.say("starting the servers")
        ours = stack.enter_context(closing(_Ours(subject, folder / "ours")))
        peers = {
            name: stack.enter_context(closing(_PEERS[name](subject, folder / name, settings)))
            for name in settings.peers
        }
        contestants = [
            Contestant(name="memcpy", run=arrays.memcpy(subject.module.values)),
            Contestant(name="ours", prepare=ours.train, run=ours.publish, clear=ours.note, warm_ups=WARM_UPS),
        ]
        alone = measure(contestants, runs=settings.runs * _ALONE, order=random.Random(0), track=progress.track)
        contestants += [
            Contestant(name=name, prepare=peer.train, run=peer.publish, clear=peer.tidy, optional=True)
            for name, peer in peers.items()
        ]
        timings = measure(contestants, runs=settings.runs, order=random.Random(0), track=progress.track)
    samples = [*alone.samples["ours"], *timings.samples["ours"]]
    return {
        **timings.figures(ours_over_memcpy=("ours", "memcpy")),
        "ours_ms_p50": float(np.percentile(samples, 50)),
        "ours_ms_p99": float(np.percentile(samples, 99)),
        "samples_ms": {**timings.samples, "ours_alone": alone.samples["ours"]},
        "phases": {name: statistics.median(phases[name] for phases in ours.phases) for name in _PHASES},
    }


class _Ours:
    """Ours: publishes with `Publisher.publish`; an inferencer answers."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        folder.mkdir()
        self.phases: list[dict[str, float]] = []
        self._subject = subject
        self._step = 0
        self._answered_at = 0.0
        self._publisher = Publisher(folder / "store", subject.module, schedule=MANUAL, keep=KEEP, on_error="raise")
        self._publisher.publish(0, wait=True)
        self._server = Served.inferencer(folder / "store")
        self._client = Inferencer(self._server.addresses["control"])
        self._events: queue.SimpleQueue[pb.Event] = queue.SimpleQueue()
        self._server.ask_until(_REQUEST, 0)
        self._asker = _asker(self._server, folder)
        threading.Thread(target=self._listen, daemon=True).start()

    def train(self) -> None:
        """Change every value that is not frozen."""
        self._subject.train()
        self._step += 1

    def publish(self) -> None:
        """Publish, and return once an answer came from the parameters of this step."""
        version = self._publisher.publish(self._step)
        self._asker.until(version.number)
        self._answered_at = time.time()

    def note(self) -> None:
        """Split the time into phases, with the times in the version's record and in the inferencer's event."""
        while (event := self._events.get(timeout=_PATIENCE)).version.step != self._step:
            pass
        version, restore_began = event.version, event.at - event.restore_seconds
        begins = (version.step_done_at, version.snapshot_at, version.committed_at, restore_began, event.at)
        ends = (*begins[1:], self._answered_at)
        self.phases.append({name: (end - begin) * 1e3 for name, begin, end in zip(_PHASES, begins, ends, strict=True)})

    def close(self) -> None:
        self._asker.close()
        self._client.close()
        self._server.close()
        self._publisher.close()

    def _listen(self) -> None:
        for event in self._client.watch(MODEL):
            if event.kind == pb.Event.SWAPPED:
                self._events.put(event)


class _Peer(abc.ABC):
    """A peer: saves into a folder. A loop in a server process looks for new versions in this folder."""

    loop: str

    def __init__(self, subject: Subject, folder: Path, settings: Settings) -> None:
        self.subject = subject
        self.step = 0
        self.folder = folder / "saved"
        self.folder.mkdir(parents=True)
        options = [f"--bytes={settings.bytes}", f"--tensors={settings.tensors}"]
        self._server = Served("bench.loops", [self.loop, str(self.folder), *options], log=folder / "log")
        self._asker = _asker(self._server, folder)

    def train(self) -> None:
        """Change every value that is not frozen."""
        self.subject.train()
        self.step += 1

    def publish(self) -> None:
        """Save, and return once an answer came from the parameters of this step."""
        self.save()
        self._asker.until(self.step)

    @abc.abstractmethod
    def save(self) -> None: ...

    def tidy(self) -> None:  # noqa: B027, a Saver removes old versions itself
        """Remove old versions."""

    def close(self) -> None:
        self._asker.close()
        self._server.close()


class _Saver(_Peer):
    """`Saver.save`; the loop restores it at once."""

    loop = "saver"

    def __init__(self, subject: Subject, folder: Path, settings: Settings) -> None:
        super().__init__(subject, folder, settings)
        self._saver = Saver(subject)

    def train(self) -> None:
        self._saver.train()
        self.step += 1

    def save(self) -> None:
        self._saver.save(self.folder, self.step)


class _SavedModel(_Peer):
    """An export of Keras, as TensorFlow Serving reads it, into a numbered folder; the loop loads it at once."""

    loop = "savedmodel"

    def save(self) -> None:
        aside = self.folder / f"aside-{self.step}"
        self.subject.keras.export(str(aside), verbose=False)
        aside.rename(self.folder / str(self.step))

    def tidy(self) -> None:
        shutil.rmtree(self.folder / str(self.step - 1), ignore_errors=True)


_PEERS: dict[str, type[_Saver] | type[_SavedModel]] = {"saver": _Saver, "savedmodel": _SavedModel}


def _asker(server: Served, folder: Path) -> Asker:
    path = folder / "request"
    path.write_bytes(_REQUEST)
    return Asker(server.addresses["predictions"], path)
