"""A bucket under fire: schedules, faults on the wire, kills, damage, a day's sleep, versions that come all the time.

Each has a short form here and its whole length in `make campaign`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import obstore
import pytest

from paramsync.errors import FencedError, ParamsyncError
from paramsync.remote import child, copy_note, download, state, upload
from paramsync.remote.bucket import Bucket
from paramsync.remote.bucket_status import BucketStatus
from paramsync.remote.child import MirrorChild
from paramsync.remote.outgoing import Outgoing
from paramsync.remote.protocol import Answered, Create, Found, Operation, Written
from paramsync.remote.state import State
from paramsync.store.store import Store
from tests.hostile.campaigns.versions import tensors, version, wrong
from tests.hostile.test_serving_campaigns import CLIENTS, Clients, synced, total
from tests.remote.test_bucket import WRITERS, race, replace
from tests.support.buckets import SeaweedFs
from tests.support.inferencers import Process
from tests.support.mirrors import Pair, same
from tests.support.programs import ROOT, eventually
from tests.support.proxies import FAULTS, Proxy
from tests.support.published import Publisher

pytestmark = pytest.mark.slow
HOUR = 3600.0
_QUICK = timedelta(milliseconds=5)
_RETRIES = {
    "max_retries": 1,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {"init_backoff": _QUICK, "max_backoff": _QUICK, "base": 2},
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFs]:
    with SeaweedFs(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(started: SeaweedFs, monkeypatch: pytest.MonkeyPatch) -> SeaweedFs:
    """A server of these tests alone, which programs find by their environment. It may be killed."""
    for name, value in started.environment.items():
        monkeypatch.setenv(name, value)
    return started


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where publishers of this test have their stores."""
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(child, "_MEMORY", tmp_path / "memory")
    return tmp_path / "memory"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def current(bucket: Bucket) -> State:
    found = bucket.read()
    assert isinstance(found, Found)
    return state.from_json(found.content)


def test_schedules_break_no_promise(whole: bool) -> None:
    count = 500_000 if whole else 1_000
    module = "tests.hostile.campaigns.schedules"
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", module, str(first), str(count), *options],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for first, options in ((1_000, []), (1_000, ["--restored"]))
        ]
        said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    for text in said:
        say(text.splitlines()[-1])


def test_of_many_writers_through_two_gateways_exactly_one_wins_each_race(server: SeaweedFs, whole: bool) -> None:
    folders, races, writers = (
        (20, 50, 32) if whole else (2, 1, WRITERS)
    )  # at once, for those who wait do so for seconds

    def run(at: int) -> int:
        gateways = [Bucket("s3://bucket/m", store=server.store(f"race-{at}", gateway=gateway)) for gateway in (0, 1)]
        before = gateways[0].answer(Create(b"0"))
        assert isinstance(before, Written)
        tag = before.tag
        for turn in range(races):
            answers = race(writers, partial(replace, gateways, turn, tag))
            [winner] = [answer for answer in answers if isinstance(answer, Written)]
            found = gateways[1].read()
            assert isinstance(found, Found)
            assert found.tag == winner.tag != tag
            assert found.content.startswith(b"%d " % turn)
            tag = found.tag
        return races

    with ThreadPoolExecutor(folders) as pool:
        done = sum(pool.map(run, range(folders)))
    say(f"{done} races of {writers} writers through two gateways: one winner each")


class _Faults:
    """The faults of a proxy: some requests of all, and only such as a server can do."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.share = 0.0

    def __call__(self, method: str, path: str) -> str:
        if self._chance.random() >= self.share:
            return ""
        fault = self._chance.choice(FAULTS)
        is_conditional = method == "PUT" and path.endswith(state.NAME)
        if fault == "412 after" and not is_conditional:
            return "answer lost"
        if fault == "request late" and method == "GET":
            return "request lost"
        return fault


def test_faults_on_the_wire_lose_nothing_and_no_version_goes_back(
    server: SeaweedFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr(upload, "GRACE", 1.0)
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0.1)
    monkeypatch.setattr("paramsync.remote.bucket._LAST_WAIT", 0.2)
    chance, faults, clock = random.Random(5), _Faults(6), time.time
    monkeypatch.setattr(time, "time", lambda: clock() + HOUR * chance.choice([-1, 0, 1]))
    counts: Counter[str] = Counter()
    straight = Bucket("s3://bucket/m", store=server.store("m"))
    with Proxy(server.endpoints[0], faults) as proxy:
        pair = Pair(tmp_path, server.store("m", endpoint=proxy.endpoint, retry_config=_RETRIES), size=20_000)
        number = acknowledged = held = 0
        faults.share = 0.25
        while proxy.counts.total() < (5000 if whole else 60):
            number += 1
            pair.publish(number, changed=chance.choice([1, 100, 15_000]))
            for _ in range(chance.randrange(1, 4)):
                with suppress(ParamsyncError, OSError):
                    if (done := pair.upload.run_once()) is not None:
                        acknowledged = done.version.number
                        counts["acknowledged"] += 1
            if chance.random() < 0.05:
                pair.upload = pair.publisher()
                counts["publishers"] += 1
            if chance.random() < 0.05:
                pair.download.close()
                pair.download = pair.follower("target")
            for _ in range(2):
                try:
                    counts["fetched"] += pair.download.run_once() is not None
                except (ParamsyncError, OSError):
                    counts["failed looks"] += 1
                pair.download.note(BucketStatus(address="s3://bucket/m"))
            now = current(straight) if acknowledged else None
            assert now is None or (now.newest is not None and now.newest.number >= acknowledged)
            assert now is None or now.live <= set(straight.objects())
            if (latest := pair.target.latest()) is not None:
                assert latest.number >= held
                held = latest.number
                bundle = pair.target.open(latest)
                bundle.verify(bundle.entries)
                assert np.asarray(bundle.array("step")) == held
        faults.share = 0.0
        pair.publish(number + 1)
        pair.upload.run_once()
        eventually(lambda: _is_fetched(pair), lambda: "the last version")
        same(pair.source, pair.target)
    pair.close()
    say(f"{proxy.counts.total()} faults, {dict(proxy.counts)}: {dict(counts)}; lost 0, missing 0, back 0")


def _is_fetched(pair: Pair) -> bool:
    with suppress(ParamsyncError, OSError):
        pair.download.run_once()
    return pair.source.latest() == pair.target.latest()


class _Asleep(Bucket):
    """A bucket whose user is stopped before its operation of this number, while `sleep` goes on."""

    def __init__(self, objects: Any, at: int, sleep: Callable[[], None]) -> None:
        super().__init__("s3://bucket/models/m", store=objects)
        self._left, self._sleep = at, sleep

    def answer(self, operation: Operation) -> Answered:
        if self._left == 0:
            self._sleep()
        self._left -= 1
        return super().answer(operation)


class _Night:
    """A publisher that is stopped before its operation of this number, while its successor works for a day."""

    def __init__(self, folder: Path, at: int) -> None:
        self.pair = Pair(folder, size=500)
        self.is_over = False
        self._now, self._step = 0.0, 0
        self._first = self._publisher(_Asleep(self.pair.objects, at, self._sleep))

    def _publisher(self, bucket: Bucket | None = None) -> upload.Upload:
        return self.pair.publisher(bucket, clock=lambda: self._now)

    def _sleep(self) -> None:
        self.is_over = True
        self._now += 10 * upload.GRACE
        successor = self._publisher()
        for _ in range(4):
            self._publish(successor)
        self._now += upload.GRACE

    def _publish(self, publisher: upload.Upload) -> None:
        self._now += upload.GRACE
        self._step += 1
        self.pair.publish(self._step, changed=500)
        publisher.run_once()

    def run(self) -> int:
        """Publish until the publisher has slept and is fenced off; returns how many objects were deleted."""
        before: set[str] = set()
        fenced = 0
        while fenced < 3:  # it may be told, and try again
            before |= self.pair.names()
            try:
                self._publish(self._first)
            except FencedError:
                fenced += 1
        return len(before - self.pair.names())


def test_a_publisher_that_slept_for_ten_grace_periods_deletes_nothing_live(tmp_path: Path, whole: bool) -> None:
    trials = 100 if whole else 12
    deleted = 0
    for trial in range(trials):
        night = _Night(tmp_path / str(trial), 6 + trial % 30)
        deleted += night.run()
        assert night.is_over
        found = current(night.pair.bucket)
        assert found.live <= night.pair.names()
        assert night.pair.download.run_once() is not None
        night.pair.close()
    say(f"{trials} publishers slept for ten grace periods: 0 live objects deleted, {deleted} others")


DAMAGES: dict[str, Callable[[random.Random, bytes, bytes], bytes | None]] = {
    "flipped": lambda chance, content, _: _flip(chance, content),
    "cut": lambda chance, content, _: content[: chance.randrange(len(content))],
    "emptied": lambda chance, content, _: b"",
    "zeroed": lambda chance, content, _: bytes(len(content)),
    "swapped": lambda chance, content, other: other,
    "replayed": lambda chance, content, other: other,
    "removed": lambda chance, content, _: None,
}


def _flip(chance: random.Random, content: bytes) -> bytes:
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def test_damaged_objects_are_never_served_each_is_told_and_the_next_version_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(download, "_LAST_PAUSE", 0.0)
    chance, counts = random.Random(0), Counter[str]()
    pair, number, older = Pair(tmp_path, size=4000), 1, [b"{}"]
    pair.publish(1)
    pair.upload.run_once()
    pair.download.run_once()
    for trial in range(1000 if whole else 60):
        number += 1
        before = {name: _content(pair, name) for name in pair.names()}
        pair.publish(number, changed=chance.choice([1, 50, 4000]))
        assert pair.upload.run_once() is not None
        is_new = trial % 4 == 0
        follower = pair.follower(f"new-{trial}") if is_new else pair.download
        damage = chance.choice([*DAMAGES])
        needed = _needed(pair, number, is_new=is_new)
        name = chance.choice(needed if damage != "replayed" else needed[:2])
        sound, kind = _content(pair, name), name.partition("/")[0]
        others = [content for other, content in before.items() if (damage == "replayed") == other.startswith(kind)]
        if damage == "replayed" and not is_new and trial % 3 == 0:
            name, sound, others = state.NAME, _content(pair, state.NAME), older
        others = [other for other in others if other != sound]
        older = [before[state.NAME]]
        content = DAMAGES[damage](chance, sound, chance.choice(others or [sound[:-1]]))
        if content is None:
            obstore.delete(pair.objects, name)
        else:
            obstore.put(pair.objects, name, content)
        store = Store(pair.folder / (f"new-{trial}" if is_new else "target"))
        told = _told(follower)
        latest = store.latest()
        if latest is not None and latest.number == number:
            assert told or (name == state.NAME and _says_the_same(content, sound)), f"{name} {damage}"
            counts["came another way" if told else "harmless"] += 1
            same(pair.source, store)
        else:
            assert told, f"{name} {damage}"
            assert is_new or (latest is not None and latest.number == number - 1)
            counts["refused"] += 1
        counts[damage] += 1
        obstore.put(pair.objects, name, sound)
        number += 1
        pair.publish(number, changed=50)
        assert pair.upload.run_once() is not None
        _told(follower)
        same(pair.source, store)
        if is_new:
            follower.close()
            shutil.rmtree(store.path)
            _told(pair.download)
    pair.close()
    say(f"{trial + 1} damaged objects: {dict(counts)}; served 0")


def _says_the_same(content: bytes | None, sound: bytes) -> bool:
    """Whether a damaged state is none: a space has become another one."""
    return content is not None and json.loads(content) == json.loads(sound)


def _content(pair: Pair, name: str) -> bytes:
    return bytes(obstore.get(pair.objects, name).bytes())


def _needed(pair: Pair, number: int, *, is_new: bool) -> list[str]:
    """The objects on the cheapest way to a version, from the one before or from nothing."""
    newest = current(pair.bucket).versions[-1]
    manifest = json.loads(_content(pair, newest.manifest))
    names = [newest.manifest]
    edges = [edge["name"] for edge in manifest["edges"] if (edge["base"], edge["number"]) == (number - 1, number)]
    if is_new or not edges:
        return [*names, manifest["whole"]["name"]]
    return [*names, *edges, state.NAME]


def _told(follower: download.Download) -> list[str]:
    """What a follower says at three looks."""
    told: list[str] = []
    for _ in range(3):
        try:
            done = follower.run_once()
        except (ParamsyncError, OSError) as error:
            told.append(str(error))
        else:
            told += [] if done is None else done.damages
    return told


class _Killed:
    """A publisher and its followers as processes, any of which may be killed or stopped."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self.acknowledged: list[int] = []
        self.log = (folder / "log").open("ab")
        self.publisher = self._publish()
        self.followers = [self._follow(at) for at in range(2)]
        self.held = [0, 0]

    def _publish(self) -> subprocess.Popen[str]:
        module = "tests.hostile.campaigns.bucket"
        command = [sys.executable, "-m", module, self.address]
        publisher = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=self.log, text=True)
        threading.Thread(target=self._read, args=(publisher,), daemon=True).start()
        return publisher

    def _read(self, publisher: subprocess.Popen[str]) -> None:
        assert publisher.stdout is not None
        with publisher.stdout:
            for line in publisher.stdout:
                if line.strip().isdigit():
                    self.acknowledged.append(int(line))

    def _follow(self, at: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "paramsync.cli", "mirror", self.address, str(self.store(at).path), "--json"]
        return subprocess.Popen(command, cwd=ROOT, stdout=self.log, stderr=self.log)

    def store(self, at: int) -> Store:
        return Store(self.folder / f"follower-{at}")

    @property
    def mirrors(self) -> list[int]:
        """The mirrors beside publishers."""
        found = subprocess.run(
            ["pgrep", "-f", f"cli mirror /.* {self.address}"], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in found.stdout.split()]

    def hit(self, what: list[str], number: signal.Signals, chance: random.Random) -> None:
        """Kill these processes, or stop them for a moment."""
        processes: list[subprocess.Popen[Any]] = [self.publisher] if "publisher" in what else []
        processes += [chance.choice(self.followers)] if "follower" in what else []
        pids = [*(process.pid for process in processes), *(self.mirrors if "mirror" in what else ())]
        _send(pids, number)
        if number == signal.SIGKILL:
            for process in processes:
                process.wait()
        else:
            threading.Event().wait(chance.uniform(0, 0.5))
            _send(pids, signal.SIGCONT)

    def begin_again(self) -> None:
        """Start what was killed."""
        if self.publisher.poll() is not None:
            self.publisher = self._publish()
        for at, follower in enumerate(self.followers):
            if follower.poll() is not None:
                self.followers[at] = self._follow(at)

    def go_on(self, count: int) -> None:
        """Wait until so many versions were acknowledged."""
        log = self.folder / "log"
        eventually(lambda: len(self.acknowledged) >= count, lambda: f"{count} versions:\n{log.read_text()[-3000:]}")

    def check(self) -> None:
        """Every follower has a whole version, no older than before."""
        for at in range(2):
            latest = self.store(at).latest()
            if latest is not None:
                assert latest.number >= self.held[at], f"follower {at} went back"
                self.held[at] = latest.number
                bundle = self.store(at).open(latest)
                bundle.verify(bundle.entries)
                assert wrong(bundle, latest.number) == []

    def close(self) -> None:
        processes: list[subprocess.Popen[Any]] = [self.publisher, *self.followers]
        for process in processes:
            process.kill()
            process.wait()
        _send(self.mirrors, signal.SIGKILL)
        self.log.close()


def test_kills_and_stops_of_every_process_lose_no_acknowledged_version(
    server: SeaweedFs, tmp_path: Path, whole: bool
) -> None:
    chance, counts = random.Random(3), Counter[str]()
    address = f"s3://{server.bucket}/kills"
    bucket = Bucket(address, store=server.store("kills"))
    with ExitStack() as stack:
        programs = _Killed(address, tmp_path)
        stack.callback(programs.close)
        eventually(lambda: all(programs.store(at).latest() for at in range(2)), lambda: "a version")
        while counts.total() < (300 if whole else 4):
            what = chance.choice(["publisher", "mirror", "publisher and mirror", "follower", "server"])
            number = chance.choice([signal.SIGKILL, signal.SIGSTOP])
            counts[f"{what} {number.name}"] += 1
            programs.log.write(f"{what} {number.name}\n".encode())
            programs.log.flush()
            if what == "server" and number == signal.SIGKILL:
                server.crash()
            elif what == "server":
                with server.away():
                    threading.Event().wait(chance.uniform(0, 0.5))
            else:
                programs.hit(what.split(), number, chance)
            programs.begin_again()
            before = len(programs.acknowledged)
            programs.go_on(before + 2)
            newest = current(bucket).newest
            assert newest is not None
            assert newest.number >= max(programs.acknowledged[: before + 1])
            assert programs.acknowledged == sorted(programs.acknowledged)
            programs.check()
        last = programs.acknowledged[-1]
        eventually(
            lambda: all((latest := programs.store(at).latest()) and latest.number >= last for at in range(2)),
            lambda: f"version {last} at {programs.held}",
        )
        programs.check()
        assert _is_complete(bucket)
    say(f"{counts.total()} kills and stops, {dict(counts)}; {len(programs.acknowledged)} acknowledged, lost 0, back 0")


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_complete(bucket: Bucket) -> bool:
    """Whether a state that holds still has all its objects."""
    before = current(bucket)
    names = set(bucket.objects())
    return before.live <= names or before.nonce != current(bucket).nonce


class _Absence:
    """A proxy of a server that is away: stopped, so that calls wait for their time-outs, or it ends connections."""

    def __init__(self, server: SeaweedFs, *, stopped: bool) -> None:
        self._server, self._stopped, self._is_away = server, stopped, False
        self.proxy = Proxy(server.endpoints[0], lambda method, path: "request lost" if self._is_away else "")

    @contextmanager
    def away(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self._stopped:
                stack.enter_context(self._server.away())
            self._is_away = not self._stopped
            yield
            self._is_away = False


def test_a_bucket_that_is_away_costs_nothing_but_time(
    server: SeaweedFs, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    address, copy = f"s3://{server.bucket}/away", Store(tmp_path / "copy")
    absence = _Absence(server, stopped=whole)
    with absence.proxy as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        outgoing, follower = Outgoing(address, keep=4), MirrorChild(address, str(copy.path))
        with outgoing.writer() as writer:

            def publish() -> int:
                number = writer.next_number(1)
                writer.commit(version(number), tensors(number))
                return number

            def has_come(number: int) -> bool:
                latest = copy.latest()
                return latest is not None and latest.number == number

            first = publish()
            eventually(lambda: has_come(first), lambda: "a version")
            with absence.away():
                end = time.monotonic() + (600 if whole else 0)

                def is_told() -> bool:
                    number, note = publish(), copy_note.read(copy.path)
                    is_told = note is not None and note.reason and outgoing.status().reason
                    return bool(is_told) and time.monotonic() > end and number > first + 10

                eventually_long(is_told, seconds=900)
                assert has_come(first)
            last = publish()
            eventually(lambda: has_come(last), lambda: f"version {last}: {outgoing.status().reason}")
            assert wrong(copy.open(copy.find(last)), last) == []
            eventually(lambda: not outgoing.status().reason, lambda: outgoing.status().reason)
        outgoing.close()
        follower.close(1.0)
    assert [*memory.iterdir()] == []
    say(f"{last - first} versions while the bucket was away{' for 600 s' if whole else ''}: the last came afterwards")


def eventually_long(look: Callable[[], bool], *, seconds: float) -> None:
    """As `eventually`, for more seconds, and with a longer pause."""
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            _fail(seconds)
        threading.Event().wait(0.2)


def _fail(seconds: float) -> NoReturn:
    raise AssertionError(f"waited {seconds:g} s")


def test_nobody_who_predicts_notices_versions_that_come_over_a_bucket(
    server: SeaweedFs, tmp_path: Path, whole: bool
) -> None:
    versions, requests = (1000, 100_000) if whole else (10, 1_000)
    address = f"s3://{server.bucket}/served"
    began = time.monotonic()
    publisher = Publisher(tmp_path / "m")
    publisher.publish(1)
    mirror = MirrorChild(str(tmp_path / "m"), address)
    program = Process("--model", f"m={address}", "--cache", tmp_path / "cache", "--rest-port", "0", "--workers", "2")
    try:
        program.connect()
        _serves(program, 1, mirror)
        clients = Clients(program, tmp_path)
        for number in range(2, versions + 2):
            publisher.publish(number)
            _serves(program, number, mirror)
            _answered(clients, (number - 1) * requests // versions)
        seen = clients.end()
    finally:
        program.close()
        mirror.close()
        publisher.close()
    assert total(seen, "answered") >= requests
    assert [total(seen, what) for what in ("backwards", "mixed")] == [0, 0]
    assert [(client["failed"], client["refused"], client["codes"]) for client in seen] == [({}, 0, {})] * CLIENTS
    say(
        f"{versions} versions over the bucket, {total(seen, 'answered')} answers in {time.monotonic() - began:.0f} s: "
        "failed 0, mixed 0, backwards 0"
    )


def _serves(program: Process, number: int, mirror: MirrorChild) -> None:
    eventually(lambda: synced(program) == number, lambda: f"version {number}: {mirror.reason}")


def _answered(clients: Clients, count: int) -> None:
    eventually(lambda: clients.answered >= count, lambda: f"{count} answers, of which there are {clients.answered}")
