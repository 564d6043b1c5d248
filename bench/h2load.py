"""Runs the load generator `h2load`, which sends one request again and again and logs how long each answer took."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paramsync.errors import CallError, SettingsError

PROGRAM = "h2load"
_WARM_UP = 1  # whole seconds; a shorter measurement has no warm-up
_DATA = re.compile(r"\((\d+)\) data")
_REQUESTS = re.compile(r"(\d+) succeeded")
_AT_ONCE = 16  # the most open calls of one paced connection, so that calls go on while the server stalls
_SHORTER = 0.98  # fewer bytes than this share of the expected bytes mean that some answers were errors of gRPC


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, and a file with the framed message to send. `answer` is the size of each answer; 0 if unknown."""

    url: str
    body: Path
    answer: int = 0

    @classmethod
    def grpc(cls, address: str, method: str, message: bytes, body: Path, answer: int = 0) -> Target:
        body.write_bytes(struct.pack(">BI", 0, len(message)) + message)
        return cls(f"http://{address}{method}", body, answer)


@dataclass(frozen=True, slots=True)
class Answers:
    """The durations of all answers within some seconds, and the number of calls that failed."""

    seconds: float
    milliseconds: Sequence[float]
    failed: int

    @property
    def rate(self) -> float:
        return len(self.milliseconds) / self.seconds

    def percentile(self, percent: float) -> float:
        """Raises CallError if nothing was answered."""
        if not self.milliseconds:
            raise CallError("no call was answered", "UNKNOWN")
        ordered = sorted(self.milliseconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


def require() -> None:
    """Raise SettingsError if h2load is not installed."""
    if not is_installed():
        raise SettingsError(f"{PROGRAM} is not installed: apt-get install nghttp2-client")


def closed(target: Target, callers: int, seconds: float) -> Answers:
    """Let each caller call again after each answer, on its own connection. Raises CallError for gRPC errors."""
    whole = max(1, round(seconds))
    log = target.body.with_suffix(".log")
    warm_up = _WARM_UP if seconds >= _WARM_UP else 0
    command = _command(target, callers, log, f"--duration={whole}", f"--warm-up-time={warm_up}")
    _check(target, subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = _rows(log)
    answered = [milliseconds for _, good, milliseconds in rows if good]
    return Answers(whole, answered, len(rows) - len(answered))


def _check(target: Target, said: str) -> None:
    """Raise CallError if answers were shorter than expected: an error of gRPC has no message."""
    data, requests = _DATA.search(said), _REQUESTS.search(said)
    if target.answer and data and requests and int(data[1]) < _SHORTER * target.answer * int(requests[1]):
        raise CallError(f"answers of {target.answer} bytes were expected:\n{said}", "UNKNOWN")


class Paced:
    """Calls at a steady rate while the `with` block runs. A connection waits for answers only if 16 calls are open.

    The connections are made one after another within the first second, so that they do not call at the same moments.
    """

    def __init__(self, target: Target, *, connections: int, rate: float, seconds: float) -> None:
        self.log = target.body.with_suffix(".paced")
        apart = f"--rate-period={1000 // connections}ms"
        pace = [f"--rps={rate / connections:.2f}", "--rate=1", apart, f"--requests={int(rate * seconds) + connections}"]
        self._target = target
        command = _command(target, connections, self.log, *pace, at_once=_AT_ONCE)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait(self) -> None:
        """Wait until h2load has ended, and has logged all answers. Raises CallError for errors of gRPC."""
        _check(self._target, self._process.communicate()[0])

    def __enter__(self) -> Paced:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def between(self, begin: float, seconds: float) -> Answers:
        """Return the answers to calls sent within `seconds` after `begin` (since the epoch). Call `wait` first."""
        rows = [row for row in _rows(self.log) if begin <= row[0] < begin + seconds]
        answered = [milliseconds for _, good, milliseconds in rows if good]
        return Answers(seconds, answered, len(rows) - len(answered))


def _rows(log: Path) -> list[tuple[float, bool, float]]:
    """Return for each call when it was sent (seconds since 1970), whether it was answered, and its milliseconds."""
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    return [(int(row[0]) / 1e6, row[1] == "200", int(row[2]) / 1e3) for row in rows if len(row) == 3]


def _command(target: Target, clients: int, log: Path, *more: str, at_once: int = 1) -> list[str]:
    log.unlink(missing_ok=True)
    fixed = [PROGRAM, "-c", str(clients), "-m", str(at_once), "-t", "1", "-d", str(target.body), f"--log-file={log}"]
    return [*fixed, *more, "-H", "content-type: application/grpc", "-H", "te: trailers", target.url]
