"""Runs a mirror, which copies versions to or from a bucket, in a child process. Trainers and servers use it.

In a process of its own, copying does not slow training. When the parent ends, the standard input of the process ends:
the process then copies the newest version, and exits. A process that dies is started again, unless another
publisher has taken over the bucket: a new process would take the bucket back.
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
from paramsync.remote.in_order import addresses, buckets

_log = logging.getLogger("paramsync.mirror")

_MEMORY = Path("/dev/shm")
_FIRST_WAIT, _LAST_WAIT = 0.5, 30.0  # seconds until a process that died is started again
_START_SECONDS = 120.0  # how long a mirror on a busy machine may take to start and take over a bucket
_END_SECONDS = 60.0  # how long the last version may take to be copied when the program ends


class MirrorChild:
    """Runs `paramsync mirror SOURCE TARGET` until it is closed. Any thread may use it."""

    def __init__(
        self,
        source: str,
        target: str,
        *,
        keep: int = 5,
        lock: int | None = None,
        on_copied: Callable[[Copied], object] = lambda copied: None,
    ) -> None:
        """`lock` is a file descriptor that the process keeps open. `on_copied` is called for each copied version, on
        the thread that reads the process's reports.

        Raises SettingsError for an address that cannot be used.
        """
        check_keep(target, keep)
        self._kept_open = () if lock is None else (lock,)
        if "://" in source:
            buckets(source)
        if "://" in target:
            Bucket(target)
        if not is_address(target):
            _make(Path(target))
        self._command = [sys.executable, "-m", "paramsync.cli", "mirror", source, target]
        self._command += ["--keep", str(keep), "--json", "--beside", secrets.token_hex(16)]
        self._seen: list[str] = []  # arguments that tell the next process which publisher to continue
        self._is_waited_for = is_address(target)
        self._told = ""  # the reason that was logged last
        self._heard = threading.Event()  # set once the process took over the bucket, or reported why it could not
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
        """Why versions are not copied at present; "" while they are."""
        return self.status.reason

    @property
    def over(self) -> bool:
        """Whether this mirror ended for good, because another publisher began or somebody emptied the bucket."""
        return self.status.over

    @property
    def newest(self) -> int | None:
        """Number of the newest version in the bucket, by the mirror's last report.

        This version may be newer than `status.copied`, because a mirror may die before it reports a copy.
        """
        return self.status.newest

    def look(self) -> None:
        """Have the mirror look for a version at once."""
        with self._lock, suppress(OSError, ValueError):  # a process that has ended looks when it is started again
            if self._process is not None and self._process.stdin is not None:
                os.write(self._process.stdin.fileno(), b"!")

    def wait_until_taken_over(self) -> None:
        """Wait until the mirror has taken over the bucket, so that no earlier publisher can add versions to it.

        Raises RemoteError, with the reason, if the bucket cannot be taken over now.
        """
        heard = self._heard.wait(_START_SECONDS)
        if not self._seen:
            raise RemoteError(self.reason if heard else f"the mirror did not start within {_START_SECONDS:g} s")

    def close(self, seconds: float = _END_SECONDS) -> bool:
        """Have the newest version copied, and end the process. Returns whether it succeeded within `seconds`."""
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
                    start_new_session=True,  # Ctrl-C must not end the process before it has copied the last version
                )
                assert process.stdin is not None
                os.set_blocking(process.stdin.fileno(), False)  # or `look` would block if the process is stopped
                self._process = process
                if self._closed.is_set():
                    process.stdin.close()
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith(b'{"error"'):  # the process works, so the next wait is short again
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
                return  # do not log: the waiting program reports the reason itself, or the reason was logged before
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
            self.status = replace(status, copied=status.copied or before)  # a new process has copied nothing yet
            self._told = self._told if status.reason else ""
            if self.status.copied not in (None, before):
                self._on_copied(self.status.copied)

    def _failed(self, reason: str, *, over: bool = False) -> None:
        self.status = replace(self.status, reason=reason, over=over)


def memory() -> Path:
    """/dev/shm, whose files are in memory, or the folder for temporary files if /dev/shm is not writable."""
    return _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def _make(cache: Path) -> None:
    """Make the directory of a local store, readable only by this user.

    Raises SettingsError if the directory cannot be made, or if it is in /dev/shm and belongs to another user: any user
    can make directories in /dev/shm, and the owner of this directory decides what is served.
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
    """Return the directory of this user's local copy of an address, in `folder` or else in memory.

    The path depends only on the address, so a restarted server can serve the copy before the bucket answers. The order
    of several addresses does not matter.
    """
    if folder is None:
        folder = memory() / f"paramsync-{os.getuid()}"
    name = ",".join(sorted(each.rstrip("/") for each in addresses(address)))
    return folder / hashlib.sha256(name.encode()).hexdigest()[:16]


def follow(address: str, owner: object, folder: Path | None = None, *, trainer: str | None = None) -> Path:
    """Start a mirror that copies an address for as long as `owner` lives. Returns the directory of the copy.

    If `address` has several addresses, separated by commas, the first that answers is followed. The mirror looks at
    once when the trainer, whose control port is `trainer`, says that a version is in the bucket.
    """
    path = cache_of(address, folder)
    child = MirrorChild(address, str(path))
    weakref.finalize(owner, child.close, 1.0)
    if trainer is not None:
        from paramsync.remote.trainer_watch import TrainerWatch  # here: most programs have no trainer to watch
        from paramsync.rpc.client import Credentials

        weakref.finalize(owner, TrainerWatch(trainer, Credentials(), child.look).close)
    return path
