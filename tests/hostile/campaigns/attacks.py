"""What a good caller notices of hostile connections: `python -m tests.hostile.campaigns.attacks [KIND ...]`.

A real server of two workers has a caller that keeps its connections and a caller that makes a new one for each call.
Beside them runs one kind of hostile connections after the other, from a process of low priority. The exit code is 1 if
a kind misses the bar.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
from tensorflow_serving.apis import predict_pb2

from paramsync.v1 import sync_pb2
from tests.hostile.campaigns.flood import AGAIN, DEAF, FRAME, HOLD, REPEAT
from tests.support import http2_client as http2
from tests.support.echoes import Echoes
from tests.support.frames import PREDICT, frame
from tests.support.inferencers import LONG, Process
from tests.support.programs import ROOT

MB = 1 << 20
_QUIET_SECONDS = 4.0
_SECONDS = 6.0
_AFTER_SECONDS = 5.0
_PAUSE = 0.005
_NEW_PAUSE = 0.05
_KEPT = 4  # connections, so that each worker has some
_MOST_SLOWER = 0.05  # seconds: the bar
_MOST_BACK = _MOST_NEW = 1.0
_PREFACE = http2.PREFACE + http2.settings({}) + http2.window_update(0, 1 << 30)
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_FIELDS = http2.literals(http2.request_fields(PREDICT))
_RESIZES = (b"\x20" + http2.integer(4096, 5, 0x20)) * 15_000
_CHURN = b"\x40\x01a\x01b" * 3000
_ONES = b"\0\x01a" + http2.integer(60_000, 7, 0x80) + b"\xff" * 60_000
_HUFFMAN = b"\0\x01a" + http2.integer(60_000, 7, 0x80) + b"\0" * 60_000  # zeros


class Kind(NamedTuple):
    content: bytes
    then: str
    connections: int = 64  # of both workers


def asked() -> bytes:
    message = predict_pb2.PredictRequest(output_filter=["x"])
    message.model_spec.name, message.model_spec.signature_name = "m", "shaped"
    message.inputs["x"].dtype = 1
    message.inputs["x"].tensor_shape.dim.add(size=2)
    message.inputs["x"].float_val.append(1.0)
    return bytes(message.SerializeToString())


def blocks(block: bytes) -> bytes:
    """Calls with these headers."""
    parts = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    count = max(2, 2 * MB // len(block))
    return _PREFACE + b"".join(_headers(2 * number + 1, parts) for number in range(count))


def _headers(stream: int, parts: list[bytes]) -> bytes:
    if len(parts) == 1:
        return http2.headers(stream, parts[0], end=True)
    first = frame(http2.HEADERS, http2.END_STREAM, stream, parts[0])
    middle = [frame(http2.CONTINUATION, 0, stream, part) for part in parts[1:-1]]
    return b"".join([first, *middle, frame(http2.CONTINUATION, http2.END_HEADERS, stream, parts[-1])])


def repeated(one: bytes, first: bytes = _PREFACE) -> bytes:
    """A frame again and again."""
    return first + (one * (FRAME // len(one))) * 5000


def kinds() -> dict[str, Kind]:
    question = http2.prefixed(asked())
    unread = http2.PREFACE + http2.settings({http2.INITIAL_WINDOW_SIZE: 0})
    unread += http2.request(1, PREDICT) + http2.data(1, question, end=True)
    streams = range(1, 40_001, 2)
    large = http2.prefixed(b"", size=60 * MB)
    small = http2.data(1, bytes(16))
    return {
        "table resizing": Kind(blocks(_RESIZES + _FIELDS), AGAIN),
        "table churn": Kind(blocks(_FIELDS + _CHURN), AGAIN),
        "Huffman ones": Kind(blocks(_FIELDS + _ONES), AGAIN),
        "Huffman zeros": Kind(blocks(_FIELDS + _HUFFMAN), AGAIN),
        "unknown methods": Kind(
            _PREFACE + b"".join(http2.request(one, f"/none.Service/{one}", end=True) for one in streams), AGAIN
        ),
        "DATA of 16 bytes": Kind(repeated(small, _PREFACE + http2.request(1, PREDICT) + http2.data(1, large)), REPEAT),
        "WINDOW_UPDATE": Kind(repeated(http2.window_update(0, 1), http2.PREFACE + http2.settings({})), REPEAT),
        "rapid reset": Kind(
            _PREFACE + b"".join(http2.request(one, PREDICT) + http2.rst_stream(one) for one in streams), AGAIN
        ),
        "idle": Kind(http2.PREFACE + http2.settings({}), HOLD, 8180),
        "unread answers": Kind(unread, HOLD, 8180),
        "unread PINGs": Kind(repeated(http2.ping(), _PREFACE), DEAF, 6000),
    }


class Seen(NamedTuple):
    at: float
    seconds: float
    failed: str


class Caller:
    """Calls again and again by a thread of its own, and keeps how long each took."""

    def __init__(self, address: str, *, kept: int, pause: float) -> None:
        self.seen: list[Seen] = []
        self._address = address
        self._channels = [self._channel() for _ in range(kept)]
        self._pause = pause
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self._address, [("grpc.use_local_subchannel_pool", 1)])

    def _run(self) -> None:
        number, content = 0, asked()
        while not self._over.wait(self._pause):
            number += 1
            channel = self._channels[number % len(self._channels)] if self._channels else self._channel()
            began = time.monotonic()
            try:
                channel.unary_unary(PREDICT, bytes, bytes)(content, timeout=20.0)
            except grpc.RpcError as error:
                failed = str(error.code())
            else:
                failed = ""
            self.seen.append(Seen(began, time.monotonic() - began, failed))
            if not self._channels:
                channel.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for channel in self._channels:
            channel.close()


class Figures(NamedTuple):
    quiet: float
    attacked: float
    worst: float
    back: float
    failed: int
    newcomer: float
    memory: int
    replaced: int

    def passes(self) -> bool:
        slower = self.attacked - self.quiet
        return (
            slower <= _MOST_SLOWER
            and self.back <= _MOST_BACK
            and self.newcomer <= _MOST_NEW
            and not self.failed
            and not self.replaced
        )


def p99(seen: list[Seen]) -> float:
    """Of calls made at a steady pace: for each pause that a call took, one more would have waited for its end."""
    seconds = sorted(one.seconds - late * _PAUSE for one in seen for late in range(1 + int(one.seconds / _PAUSE)))
    return seconds[len(seconds) * 99 // 100]


def within(seen: list[Seen], begin: float, end: float) -> list[Seen]:
    """What was called in that time, or was awaited in it."""
    return [one for one in seen if one.at + one.seconds >= begin and one.at < end]


def measured(kind: Kind, program: Process, file: Path) -> Figures:
    """What callers notice of connections of one kind."""
    file.write_bytes(kind.content)
    attack = [sys.executable, "-m", "tests.hostile.campaigns.flood", program.address.rpartition(":")[2]]
    attack += [str(kind.connections), str(_SECONDS), str(file), kind.then]
    before = set(program.workers)
    with calling(program.address) as (kept, new):
        time.sleep(_QUIET_SECONDS)
        began = time.monotonic()
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(subprocess.run, attack, cwd=ROOT, check=True, capture_output=True)
            memory = 0
            while not running.done():
                memory = max(memory, *(resident(worker) for worker in before))
                time.sleep(0.1)
            running.result()
        ended = time.monotonic()
        time.sleep(_AFTER_SECONDS)
    quiet = p99(within(kept.seen, 0.0, began))
    slow = [one for one in kept.seen if one.at >= ended and (one.seconds > quiet + _MOST_SLOWER or one.failed)]
    attacked = within(kept.seen, began, ended)
    return Figures(
        quiet=quiet,
        attacked=p99(attacked),
        worst=max(one.seconds for one in attacked),
        back=max((one.at + one.seconds - ended for one in slow), default=0.0),
        failed=sum(bool(one.failed) for one in [*kept.seen, *new.seen]),
        newcomer=max(one.seconds for one in within(new.seen, began, ended)),
        memory=memory,
        replaced=len(before - set(program.workers)),
    )


@contextmanager
def calling(address: str) -> Iterator[tuple[Caller, Caller]]:
    kept = Caller(address, kept=_KEPT, pause=_PAUSE)
    new = Caller(address, kept=0, pause=_NEW_PAUSE)
    try:
        yield kept, new
    finally:
        kept.close()
        new.close()


def resident(pid: int) -> int:
    """Bytes; 0 of a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmRSS")), 0)


@contextmanager
def served(folder: Path) -> Iterator[Process]:
    echoes = Echoes(folder / "m")
    echoes.publish(4)
    program = Process("--model", f"m={folder / 'm'}", "--rest-port", "0", "--workers", "2")
    try:
        program.connect()
        list(program.sync.Sync(sync_pb2.SyncRequest(model="m"), timeout=LONG))
        for _ in range(200):
            program.predictions.unary_unary(PREDICT, bytes, bytes)(asked(), timeout=LONG)
        yield program
    finally:
        program.close()
        echoes.close()


_TITLES = (
    "kind", "quiet p99", "p99", "worst", "back after", "failed", "new caller", "worker", "workers lost", "passes",
)  # fmt: skip


def main(chosen: list[str]) -> int:
    passes = True
    sys.stdout.write(" | ".join(_TITLES) + "\n")
    for name, kind in kinds().items():
        if chosen and name not in chosen:
            continue
        with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as program:
            gc.collect()
            gc.freeze()  # to look through all that TensorFlow made here would be a pause of 200 ms of these callers
            figures = measured(kind, program, Path(folder) / "flood")
        passes = passes and figures.passes()
        ms = [f"{1000 * seconds:.1f} ms" for seconds in (figures.quiet, figures.attacked, figures.worst)]
        row = [name, *ms, f"{figures.back:.1f} s", str(figures.failed), f"{figures.newcomer:.2f} s"]
        row += [f"{figures.memory / MB:.0f} MB", str(figures.replaced)]
        sys.stdout.write(" | ".join([*row, "yes" if figures.passes() else "NO"]) + "\n")
        sys.stdout.flush()
    return int(not passes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
