"""Makes a mirror look as soon as the trainer reports a version in the bucket, instead of at the next poll."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from paramsync.errors import ParamsyncError
from paramsync.host.files import Repeats
from paramsync.rpc.client import Credentials, Stream, Trainer
from paramsync.v1 import sync_pb2 as pb

_log = logging.getLogger("paramsync.mirror")
_FIRST_WAIT, _LAST_WAIT = 0.5, 10.0  # seconds until a trainer that does not answer is called again


class TrainerWatch:
    """Listens to the trainer at `address` until `close` is called. Any thread may use it."""

    def __init__(self, address: str, credentials: Credentials, look: Callable[[], object]) -> None:
        """`look` is called for each version, on a thread of this watch."""
        self._trainer = Trainer(address, credentials)
        self._look = look
        self._ended = threading.Event()
        self._lock = threading.Lock()  # guards the next field against `close`
        self._stream: Stream[pb.Version] | None = None
        threading.Thread(target=self._run, name="trainer watch", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._ended.set()
            if self._stream is not None:
                self._stream.close()
        self._trainer.close()

    def _run(self) -> None:
        wait = _FIRST_WAIT
        repeats = Repeats()
        while not self._ended.is_set():
            try:
                with self._lock:
                    if self._ended.is_set():
                        return
                    self._stream = self._trainer.watch(in_bucket=True)
                for _ in self._stream:
                    wait = _FIRST_WAIT
                    repeats.over()
                    self._look()
            except (ParamsyncError, ValueError) as error:  # ValueError: the channel is closed
                if not self._ended.is_set() and (told := repeats.text(str(error))) is not None:
                    _log.warning("%s; new versions are found by polling the bucket", told)
            self._ended.wait(wait)
            wait = min(2 * wait, _LAST_WAIT)
