"""A mirror in a process of its own beside a program: beside training, which it may not slow, or beside a server.

The process ends with its program: it reads the end of its standard input, copies the newest version once more, and
ends. A process that dies is started again, unless another publisher has taken the bucket: starting it again would take
the bucket back.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import secrets
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paramsync.errors import RemoteError, SettingsError
from paramsync.remote.bucket import Bucket, check_keep, is_address
from paramsync.remote.bucket_status import BucketStatus, Copied, from_values

_log = logging.getLogger("paramsync.mirror")

_MEMORY = Path("/dev/shm")
_FIRST_WAIT, _LAST_WAIT = 0.5, 30.0  # seconds until a process that died is started again
_START_SECONDS = 120.0  # for a mirror to start and take a bucket over, on a busy machine
_END_SECONDS = 60.0  # for the last version, when the program ends


class MirrorChild:
    """Runs `paramsync mirror SOURCE TARGET` until it is closed. Any thread."""

    def __init__(
        self,
        source: str,
        target: str,
        *,
        keep: int = 5,
        lock: int | None = None,
        on_copied: Callable[[Copied], object] = lambda copied: None,
    ) -> None:
        """`lock` is a descriptor that the process keeps open. `on_copied` gets each version that was copied, on a
        thread of this mirror.

        Raises SettingsError for an address that cannot be used.
        """
        check_keep(target, keep)
        self._kept_open = () if lock is None else (lock,)
        for place in (source, target):
            if "://" in place:
                Bucket(place)
        if not is_address(target):
            _make(Path(target))
        self._command = [sys.executable, "-m", "paramsync.cli", "mirror", source, target]
        self._command += ["--keep", str(keep), "--json", "--beside", secrets.token_hex(16)]
        self._seen: list[str] = []  # arguments for the next process: run and epoch of this publisher
        self._is_waited_for = is_address(target)
        self._told = ""  # the reason that was logged last
        self._heard = threading.Event()  # set once the process took the bucket over, or said why not
        self._closed = threading.Event()
        self._deadline = math.inf
        self._ended_well = False
        self._lock = threading.Lock()  # guards the start of a process against `close`
        self._process: subprocess.Popen[bytes] | None = None
        self.status = BucketStatus(address=target if is_address(target) else source)
        """The last report of the mirror."""
        self._on_copied = on_copied
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    @property
    def reason(self) -> str:
        """Why versions do not get through now; "" while they do."""
        return self.status.reason

    @property
    def over(self) -> bool:
        """Whether another publisher has begun, or somebody emptied the bucket: this mirror does not go on."""
        return self.status.over

    @property
    def newest(self) -> int | None:
        """Number of the newest version in the bucket; perhaps of a process that died before it reported its copy."""
        return self.status.newest

    def look(self) -> None:
        """Have the mirror look for a version at once."""
        with self._lock, suppress(OSError, ValueError):  # it has ended, and looks when it starts again
            if self._process is not None and self._process.stdin is not None:
                os.write(self._process.stdin.fileno(), b"!")

    def wait_until_taken_over(self) -> None:
        """Wait until earlier publishers are fenced off: from then on nobody else adds versions to the bucket.

        Raises RemoteError, with the reason, if the bucket cannot be taken over now.
        """
        heard = self._heard.wait(_START_SECONDS)
        if not self._seen:
            raise RemoteError(self.reason if heard else f"the mirror did not start within {_START_SECONDS:g} s")

    def close(self, seconds: float = _END_SECONDS) -> bool:
        """Have the newest version copied, and end the process. Returns whether it ended well in time."""
        self._deadline = time.monotonic() + seconds
        self._closed.set()
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
        self._thread.join(seconds)
        if self._thread.is_alive() and self._process is not None:
            self._process.terminate()
        return self._ended_well

    def _run(self) -> None:
        wait = _FIRST_WAIT
        while not (self._ended_well or self.over):
            with self._lock:
                process = subprocess.Popen(
                    [*self._command, *self._seen],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=self._kept_open,
                    start_new_session=True,  # Ctrl-C is for the program, whose last version is still to be copied
                )
                assert process.stdin is not None
                os.set_blocking(process.stdin.fileno(), False)  # for `look`: a mirror that is stopped reads nothing
                self._process = process
                if self._closed.is_set():
                    process.stdin.close()
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith(b'{"error"'):  # a process that only fails is started ever more seldom
                    wait = _FIRST_WAIT
                self._note(line)
            code = process.wait()
            with self._lock:
                process.stdout.close()
                if process.stdin is not None:
                    process.stdin.close()
            if self._closed.is_set():
                self._ended_well = code == 0
                if time.monotonic() > self._deadline:
                    return
            elif not self.over:
                if not self.reason:
                    self._failed(f"the mirror ended with exit code {code}")
                    _log.warning("%s; started again in %.1f s", self.reason, wait)
                self._closed.wait(wait)
                wait = min(2 * wait, _LAST_WAIT)

    def _note(self, line: bytes) -> None:
        try:
            facts = json.loads(line)
        except ValueError:
            return
        if "error" in facts:
            self._failed(str(facts["error"]), over="over" in facts)
            waits = self._is_waited_for and not self._heard.is_set()
            self._heard.set()
            if waits or self.reason == self._told:
                return  # the program says why it does not start; a process that starts again fails as the one before
            self._told = self.reason
            if self.over:
                _log.error("%s; training goes on, but no version gets into the bucket any more", self.reason)
            else:
                _log.warning("%s", self.reason)
        elif "epoch" in facts:
            self._seen = ["--seen", str(facts["run"]), str(facts["epoch"])]
            self._heard.set()
        elif "status" in facts:
            before = self.status.copied
            status = from_values(facts["status"])
            self.status = replace(status, copied=status.copied or before)  # a process that starts again has none
            self._told = self._told if status.reason else ""
            if self.status.copied not in (None, before):
                self._on_copied(self.status.copied)

    def _failed(self, reason: str, *, over: bool = False) -> None:
        self.status = replace(self.status, reason=reason, over=over)


def memory() -> Path:
    """A folder whose files are in memory, where there is one."""
    return _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def _make(cache: Path) -> None:
    """Make the directory of a local store for this user alone. Raises SettingsError if it belongs to somebody else.

    Any user can make directories in memory, and the owner of this directory decides what is served.
    """
    try:
        cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        cache.mkdir(exist_ok=True, mode=0o700)
        for folder in (cache.parent, cache) if cache.parent.parent == memory() else ():
            found = folder.lstat()
            if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
                raise SettingsError(f"{folder}: expected a directory of this user, found one of another: give --cache")
    except OSError as error:
        raise SettingsError(f"{cache}: cannot be made: {error.strerror}") from error


def cache_of(address: str, folder: Path | None = None) -> Path:
    """The directory of this user's local store of an address: in `folder`, or in memory.

    It is the same at the next start, so that a server answers before the bucket does.
    """
    if folder is None:
        folder = memory() / f"paramsync-{os.getuid()}"
    return folder / hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:16]


def follow(address: str, owner: object, folder: Path | None = None) -> Path:
    """The directory of a local store that a mirror keeps up with an address for as long as `owner` lives."""
    path = cache_of(address, folder)
    child = MirrorChild(address, str(path))
    weakref.finalize(owner, child.close, 1.0)
    return path
