"""One suite over every object store that the protocol may meet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore.store import MemoryStore

from paramsync.cli.__main__ import main
from paramsync.errors import RemoteError
from paramsync.remote import bucket as bucket_module
from paramsync.remote import protocol, settings, state
from paramsync.remote.bucket import Bucket
from paramsync.remote.protocol import Answer, Answered, Create, Delete, Found, Held, Replace, Written
from tests.support.commands import only_line, three_versions
from tests.support.gcs import Gcs
from tests.support.object_stores import ObjectStore

WRITERS = 8  # and 32 in the campaign: SeaweedFS takes a second for each writer that has to wait


@pytest.fixture(
    params=[
        "memory",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("seaweedfs", "seaweedfs-twice", "moto", "azurite", "google")
        ),
    ]
)
def gateways(
    request: pytest.FixtureRequest,
    server: Callable[[str], ObjectStore],
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
) -> list[Bucket]:
    """Two ways to the same empty folder of a bucket; of SeaweedFS by one or by two gateways."""
    if request.param == "memory":
        store: Any = MemoryStore()
        return [Bucket("s3://bucket/m", store=store)] * 2
    name, _, twice = request.param.partition("-")
    found = server(name)
    made = []
    for environment in found.environments if twice else [found.environments[0]] * 2:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        made.append(Bucket(f"{found.address}/{folder}/m"))
    return made


@pytest.fixture
def bucket(gateways: list[Bucket]) -> Bucket:
    return gateways[0]


def test_a_fit_server_passes_the_probe_which_leaves_nothing(bucket: Bucket) -> None:
    bucket.probe(threading.Event())
    assert bucket.objects() == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "why"),
    [("rclone", "this server lets two writers create one object"), ("gcs-emulator", "an answer without an ETag")],
)
def test_a_server_that_ignores_conditions_is_refused_by_its_name(
    server: Callable[[str], ObjectStore],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    why: str,
) -> None:
    found = server(name)
    for variable, value in found.environments[0].items():
        monkeypatch.setenv(variable, value)
    three_versions(tmp_path / "source")
    address = f"{found.address}/m"
    assert main(["mirror", str(tmp_path / "source"), address, "--once"]) == 1
    said = only_line(capsys.readouterr().err)
    assert said.startswith(f"paramsync mirror: {address}: ")
    assert why in said
    assert Bucket(address).read() is Answer.MISSING


def test_a_state_is_created_once_and_replaced_only_by_who_knows_it(bucket: Bucket) -> None:
    assert bucket.read() is Answer.MISSING
    first = bucket.answer(Create(b"1"))
    assert isinstance(first, Written)
    assert bucket.answer(Create(b"2")) is Answer.REFUSED
    second = bucket.answer(Replace(b"3", first.tag))
    assert isinstance(second, Written)
    assert bucket.answer(Replace(b"4", first.tag)) is Answer.REFUSED
    assert bucket.read() == Found(b"3", second.tag)
    assert bucket.read(second.tag) is None
    assert bucket.read(first.tag) == Found(b"3", second.tag)


def test_what_one_gateway_wrote_is_read_by_the_other_at_once(gateways: list[Bucket]) -> None:
    written = gateways[0].answer(Create(b"0"))
    for turn in range(20):
        assert isinstance(written, Written)
        there = gateways[(turn + 1) % 2]
        assert there.read() == Found(b"%d" % turn, written.tag)
        written = there.answer(Replace(b"%d" % (turn + 1), written.tag))
        name = f"data/1/{turn}"
        there.put(name, b"x" * turn)
        assert gateways[turn % 2].get(name, 100) == b"x" * turn


def test_letters_of_any_alphabet_may_be_in_an_address(bucket: Bucket) -> None:
    for folder in ("a b", "a+b", "größe", "模型", "a&b=c", "(1)'~!", "a.b..c", "100%"):
        odd = Bucket(f"{bucket.address}/{folder}", store=None if bucket.address != "s3://bucket/m" else MemoryStore())
        odd.put("data/1/a-b_c.d", folder.encode())
        assert isinstance(odd.answer(Create(b"{}")), Written)
        assert odd.get("data/1/a-b_c.d", 100) == folder.encode()
        assert sorted(odd.objects()) == ["data/1/a-b_c.d", "state.json"]
        odd.answer(Delete("data/1/a-b_c.d"))
        assert list(odd.objects()) == ["state.json"]


def test_a_prefix_is_a_folder(bucket: Bucket) -> None:
    for name in ("data/1/a", "data/11/a", "datum/1/a", "versions/1/a"):
        bucket.put(name, b"")
    assert sorted(bucket.objects("data/")) == ["data/1/a", "data/11/a"]
    assert list(bucket.objects("data/1/")) == ["data/1/a"]
    assert bucket.size("data/1/a") == 0
    assert bucket.get("data/1/a", 0) == b""


def test_a_state_that_is_gone_cannot_be_replaced(bucket: Bucket) -> None:
    first = bucket.answer(Create(b"1"))
    assert isinstance(first, Written)
    bucket.answer(Delete(state.NAME))
    assert bucket.answer(Replace(b"2", first.tag)) is Answer.REFUSED
    assert bucket.read() is Answer.MISSING


def test_data_comes_back_in_ranges_and_is_deleted_once_or_twice(bucket: Bucket) -> None:
    content = np.random.default_rng(0).integers(0, 256, 20 << 20, np.uint8)
    bucket.put("data/1/a", content.tobytes())
    pieces = (content[at : at + (1 << 20)].data for at in range(0, len(content), 1 << 20))
    bucket.put("data/1/b", pieces, len(content))
    for name in ("data/1/a", "data/1/b"):
        for start, stop in ((0, len(content)), (0, 1), (5 << 20, 11 << 20), (len(content) - 1, len(content))):
            assert bucket.get_range(name, start, stop) == content[start:stop].tobytes()
    assert sorted(bucket.objects("data")) == ["data/1/a", "data/1/b"]
    assert bucket.answer(Delete("data/1/a")) in (Answer.DONE, Answer.MISSING)
    assert bucket.answer(Delete("data/1/a")) in (Answer.DONE, Answer.MISSING)
    for look in (lambda: bucket.get("data/1/a", 100), lambda: bucket.size("data/1/a")):
        with pytest.raises(FileNotFoundError):
            look()


def test_an_object_of_another_size_is_refused(bucket: Bucket) -> None:
    bucket.put("data/1/a", b"x" * 100)
    with pytest.raises(RemoteError, match="at most 99 bytes"):
        bucket.get("data/1/a", 99)
    with pytest.raises(RemoteError, match="expected 101 bytes"):
        bucket.get_range("data/1/a", 0, 101)
    with pytest.raises(RemoteError, match="expected 201 bytes"):
        bucket.get_range("data/1/a", 101, 201)


def race(count: int, write: Callable[[int], Any]) -> list[Any]:
    barrier = threading.Barrier(count)

    def run(at: int) -> Any:
        barrier.wait()
        return write(at)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def replace(gateways: list[Bucket], turn: int, tag: str, at: int) -> Answered:
    return gateways[at % 2].answer(Replace(b"%d %d" % (turn, at), tag))


def test_of_many_writers_through_two_gateways_one_wins_each_race(gateways: list[Bucket]) -> None:
    first = gateways[0].answer(Create(b"0"))
    assert isinstance(first, Written)
    tag = first.tag
    for turn in range(2):
        answers = race(WRITERS, partial(replace, gateways, turn, tag))
        written = [answer for answer in answers if isinstance(answer, Written)]
        assert len(written) <= 1
        found = gateways[1].read()
        assert isinstance(found, Found)
        assert not written or found.tag == written[0].tag
        tag = found.tag


def test_of_two_publishers_that_begin_at_once_only_one_may_go_on(gateways: list[Bucket]) -> None:
    stop = threading.Event()

    def begin(at: int) -> Held | str:
        try:
            return gateways[at].perform(protocol.take_over(f"{at}" * 32, f"{at}" * 32), stop)
        except RemoteError as error:
            return type(error).__name__

    def commit(at: int, held: Held) -> str:
        try:
            gateways[at].perform(protocol.commit(held, lambda state: state, f"{at}" * 31 + "c"), stop)
        except RemoteError as error:
            return type(error).__name__
        return "goes on"

    begun = race(2, begin)
    outcomes = [held if isinstance(held, str) else commit(at, held) for at, held in enumerate(begun)]
    assert sorted(outcomes) == ["FencedError", "goes on"]


def test_a_slow_request_goes_on_and_a_stalled_one_fails_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_TIMEOUT", "AWS_READ_TIMEOUT", "AWS_ALLOW_HTTP", "GOOGLE_PROXY_URL"):
        monkeypatch.delenv(name, raising=False)
    assert settings.connection("s3") == {"timeout": "1day", "read_timeout": "30s"}
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_TIMEOUT", "5s")
    monkeypatch.setenv("GOOGLE_PROXY_URL", "http://proxy")
    assert settings.connection("s3") == {"timeout": "5s", "read_timeout": "30s", "allow_http": "true"}
    assert settings.connection("gs")["proxy_url"] == "http://proxy"


def test_a_link_too_slow_for_one_part_within_the_time_out_gets_twice_the_time_until_the_part_is_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stalled, connection = [], settings.connection

    def connect(scheme: str, seconds: float) -> dict[str, str]:
        stalled.append(seconds)
        return connection(scheme, seconds)

    monkeypatch.setattr(settings, "STALLED", 1.0)
    monkeypatch.setattr(settings, "connection", connect)
    monkeypatch.setattr(bucket_module, "_RETRIES", {"max_retries": 0})
    content = np.random.default_rng(0).integers(0, 256, 9 << 20, np.uint8).tobytes()
    with Gcs() as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        bucket = Bucket(f"{server.address}/m")
        server.is_slow = True
        for _ in range(3):  # with many parts at once, with one, and with one for twice the time
            with pytest.raises(ConnectionError):
                bucket.put("data/1/a", content)
        server.is_slow = False
        bucket.put("data/1/a", content)
        assert bucket.get_range("data/1/a", 0, len(content)) == content
    assert stalled[:4] == [1.0, 1.0, 2.0, 4.0]  # a bucket has two connections from the start
    assert bucket.seconds(len(content)) is not None


def test_a_bucket_that_another_can_replace_gets_twice_the_time_after_each_stalled_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, connection = [], settings.connection

    def connect(scheme: str, seconds: float) -> dict[str, str]:
        given.append(seconds)
        return connection(scheme, seconds)

    monkeypatch.setattr(settings, "STALLED", 4.0)
    monkeypatch.setattr(settings, "connection", connect)
    with Gcs() as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        bucket = Bucket(f"{server.address}/m", patience=1.0)
        bucket.put("data/1/a", b"content")
        server.is_slow = True
        for _ in range(3):
            with pytest.raises(ConnectionError, match="m: no answer"):
                bucket.get_range("data/1/a", 0, 7)
        server.is_slow = False
        assert bucket.get_range("data/1/a", 0, 7).tobytes() == b"content"
    assert given == [1.0, 4.0, 2.0, 4.0]


def test_as_many_parts_are_under_way_as_the_link_sends_before_they_stall(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(9 << 20)
    asked = []
    put = bucket._obstore.put

    def seen(*arguments: object, max_concurrency: int, **options: object) -> object:
        asked.append(max_concurrency)
        return put(*arguments, max_concurrency=max_concurrency, **options)

    monkeypatch.setattr(bucket._obstore, "put", seen)
    for speed in (None, 0.0, 2e6, 1e9):
        bucket._speed = speed
        bucket.put("data/1/a", content)
        assert bucket.seconds(1000) is not None
    assert asked == [8, 1, 2, 8]
