"""Followers with several addresses: of buckets with the same versions the first that answers is followed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from paramsync import Follower, Replica
from paramsync.cli.__main__ import main
from paramsync.errors import RemoteError, SettingsError
from paramsync.moments import Move
from paramsync.remote import child, copy_note, fleet, in_order, settings, state
from paramsync.remote.bucket import Bucket, check_address
from paramsync.remote.in_order import InOrder, buckets
from paramsync.remote.mirror import IDLE, Mirror
from paramsync.remote.protocol import Delete, Found
from paramsync.remote.transfer import Transfer
from paramsync.remote.upload import Upload
from paramsync.store.store import Store
from tests.support.buckets import SeaweedFs
from tests.support.json_forms import check
from tests.support.mirrors import Pair, same
from tests.support.programs import PATIENCE, eventually
from tests.support.proxies import Proxy
from tests.support.training_to_bucket import Training


class Region:
    """A folder of a bucket behind a proxy, which may be away."""

    def __init__(self, seaweedfs: SeaweedFs, folder: str) -> None:
        self.is_away = False
        self.proxy = Proxy(seaweedfs.endpoints[0], lambda method, path: "request lost" if self.is_away else "")
        self.address = f"s3://{seaweedfs.bucket}/{folder}?endpoint={self.proxy.endpoint}"


@pytest.fixture
def regions(
    seaweedfs: SeaweedFs, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[Region, Region]]:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setattr(child, "_MEMORY", tmp_path)
    monkeypatch.setattr(in_order, "_PATIENCE", 600.0)  # no bucket counts as away because this machine is busy
    eu, us = Region(seaweedfs, f"{folder}-eu"), Region(seaweedfs, f"{folder}-us")
    with eu.proxy, us.proxy:
        yield eu, us


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def publish(source: Pair, step: int, region: Region, *relays: Mirror) -> None:
    source.publish(step)
    Upload(source.source, Bucket(region.address), keep=3, stop=source.stop).run_once()
    for relay in relays:
        relay.run_once()


def fetch(follower: Mirror) -> Transfer:
    """What the next look that succeeds fetches."""
    found: list[Transfer] = []

    def look() -> bool:
        done = follower.run_once()
        found.extend([] if done is None else [done])
        return bool(found)

    eventually(look, lambda: str(follower.status))
    return found[0]


def serving(follower: Follower) -> int | None:
    version = follower.status().serving
    return None if version is None else version.number


def test_a_follower_turns_to_the_second_bucket_and_back_and_never_to_an_older_version(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path
) -> None:
    eu, us = regions
    target = tmp_path / "here"
    with (
        Mirror(eu.address, us.address) as relay,
        Mirror(f"{eu.address},{us.address}", str(target)) as follower,
    ):
        publish(source, 1, eu, relay)
        fetch(follower)
        assert follower.status.address == eu.address
        publish(source, 2, eu, relay)
        eu.is_away = True
        assert fetch(follower).version.number == 2
        assert (follower.status.address, follower.status.reason) == (us.address, "")
        same(source.source, Store(target))
        eu.is_away = False
        publish(source, 3, eu)
        assert fetch(follower).version.number == 3  # which only the first bucket has
        assert follower.status.address == eu.address
        eu.is_away = True
        with pytest.raises(ConnectionError, match=r"-us\S*: the bucket is older: found version 3 here and version 2"):
            follower.run_once()
        same(source.source, Store(target))
        assert follower.status.reason.startswith(f"{eu.address}: ")


def test_what_operators_chose_in_the_first_bucket_stays_while_the_second_is_followed(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path
) -> None:
    eu, us = regions
    target = tmp_path / "here"
    with (
        Mirror(eu.address, us.address) as relay,
        Mirror(f"{eu.address},{us.address}", str(target), keep=1) as follower,
    ):
        for step in (1, 2):
            publish(source, step, eu, relay)
        fleet.choose(eu.address, fleet.pin(eu.address, 1))
        fleet.choose(eu.address, fleet.label(eu.address, "canary", 2))
        assert fetch(follower).version.number == 1
        eu.is_away = True
        assert fetch(follower).version.number == 2
        follower.run_once()
        note = copy_note.read(target)
        assert note is not None
        assert (note.pinned, note.labels) == (1, {"canary": 2})
        assert [version.number for version in Store(target).versions()] == [1, 2]
        us.is_away = True
        with pytest.raises(ConnectionError):
            follower.run_once()
        assert ((note := copy_note.read(target)) and note.pinned) == 1


def test_a_server_that_starts_while_the_first_bucket_is_away_finds_its_choices_in_a_copy(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path
) -> None:
    eu, us = regions
    target = tmp_path / "here"
    with Mirror(eu.address, us.address, keep=2) as relay:
        for step in (1, 2):
            publish(source, step, eu, relay)
        fleet.choose(us.address, fleet.pin(us.address, 2))  # which does not count
        fleet.choose(eu.address, fleet.label(eu.address, "canary", 2))
        fleet.choose(eu.address, fleet.roll_back(eu.address))
        relay.run_once()
    with Mirror(eu.address, us.address, keep=2) as restarted, pytest.raises(RemoteError, match="numbers only rise"):
        restarted.run_once()
    eu.is_away = True
    with Mirror(f"{eu.address},{us.address}", str(target)) as follower:
        assert [fetch(follower).version.number, fetch(follower).version.number] == [1, 2]
        assert ((note := copy_note.read(target)) and (note.pinned, note.labels)) == (1, {"canary": 2})
        eu.is_away = False
        fleet.choose(eu.address, fleet.pin(eu.address, None))
        eventually(lambda: follower.run_once() or follower.status.address == eu.address, lambda: "eu")
        eu.is_away = True
        follower.run_once()
        assert ((note := copy_note.read(target)) and note.pinned) is None  # although the copy still says 1


def test_the_pins_of_a_lost_first_bucket_end_at_a_restart_with_the_second_first(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eu, us = regions
    target = str(tmp_path / "here")
    with Mirror(eu.address, us.address) as relay:
        for step in (1, 2):
            publish(source, step, eu, relay)
        fleet.choose(eu.address, fleet.pin(eu.address, 1))
        fleet.choose(eu.address, fleet.label(eu.address, "canary", 2))
        relay.run_once()
    eu.is_away = True
    assert main(["status", us.address]) == 0
    carried = "the bucket that is copied here: all followers serve version 1, pinned"
    assert carried in " ".join(capsys.readouterr().out.split())
    assert main(["status", us.address, "--json"]) == 0
    check(facts := json.loads(capsys.readouterr().out), "bucket")
    assert facts["source"] == {"pinned": 1, "serve_at": None, "labels": {"canary": 2}}
    with Mirror(f"{eu.address},{us.address}", target) as follower:
        assert [fetch(follower).version.number, fetch(follower).version.number] == [1, 2]
        assert ((note := copy_note.read(tmp_path / "here")) and note.pinned) == 1
    with Mirror(f"{us.address},{eu.address}", target) as follower:
        follower.run_once()
        assert ((note := copy_note.read(tmp_path / "here")) and (note.pinned, note.labels)) == (None, {})


def test_versions_that_operators_chose_stay_in_a_copy(source: Pair, regions: tuple[Region, Region]) -> None:
    eu, us = regions
    with Mirror(eu.address, us.address, keep=1) as relay:
        publish(source, 1, eu, relay)
        fleet.choose(eu.address, fleet.label(eu.address, "stable", 1))
        for step in (2, 3):
            publish(source, step, eu, relay)
        assert [version.number for version in Bucket(us.address).state().versions] == [1, 3]
        fleet.choose(eu.address, fleet.label(eu.address, "stable", None))
        publish(source, 4, eu, relay)
        assert [version.number for version in Bucket(us.address).state().versions] == [4]


def test_a_version_that_serves_until_the_moment_of_a_move_stays_while_the_second_bucket_is_followed(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path
) -> None:
    eu, us = regions
    target = tmp_path / "here"
    with (
        Mirror(eu.address, us.address) as relay,
        Mirror(f"{eu.address},{us.address}", str(target), keep=1) as follower,
    ):
        for step in (1, 2):
            publish(source, step, eu, relay)
        fleet.choose(eu.address, fleet.pin(eu.address, 1))
        fetch(follower)
        moment = time.time() + 3000
        fleet.choose(eu.address, fleet.pin(eu.address, 2, moment))
        fetch(follower)
        relay.run_once()
        eu.is_away = True
        follower.run_once()
        assert follower.status.address == us.address
        note = copy_note.read(target)
        assert note is not None
        assert note.move == Move(at=moment, before=1, newest=2)
        assert [version.number for version in Store(target).versions()] == [1, 2]
    with Mirror(f"{eu.address},{us.address}", str(tmp_path / "new")) as new:
        assert [fetch(new).version.number, fetch(new).version.number] == [2, 1]
        assert ((note := copy_note.read(tmp_path / "new")) and note.move) == Move(at=moment, before=1, newest=2)


@pytest.mark.parametrize("has_state", [False, True])
def test_a_first_bucket_without_versions_is_passed_over_until_it_has_one(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path, has_state: bool
) -> None:
    eu, us = regions
    with Mirror(f"{eu.address},{us.address}", str(tmp_path / "here")) as follower:
        assert follower.run_once() is None
        assert follower.status.reason == ""
        publish(source, 1, us)
        if has_state:
            new = Upload(source.source, Bucket(eu.address), keep=3, stop=source.stop)
            new.run = Bucket(us.address).state().run
            new.start()
        assert fetch(follower).version.number == 1
        assert (follower.status.address, follower.status.reason) == (us.address, "")
        with Mirror(us.address, eu.address) as relay:
            relay.run_once()
            eventually(lambda: follower.run_once() or follower.status.address == eu.address, lambda: "eu")
            us.is_away = True
            follower.run_once()
            assert follower.status.address == eu.address


def test_a_first_bucket_that_was_emptied_below_a_copy_is_passed_over(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path
) -> None:
    eu, us = regions
    with (
        Mirror(eu.address, us.address) as relay,
        Mirror(f"{eu.address},{us.address}", str(tmp_path / "here")) as follower,
    ):
        publish(source, 1, eu, relay)
        fetch(follower)
        Bucket(eu.address).answer(Delete(state.NAME))
        publish(source, 2, us)
        assert fetch(follower).version.number == 2
        us.is_away = True
        with pytest.raises(ConnectionError, match=r"eu\S*: the state object is gone"):
            follower.run_once()


def test_a_mirror_between_buckets_outlasts_an_emptied_source(source: Pair, regions: tuple[Region, Region]) -> None:
    eu, us = regions
    with Mirror(eu.address, us.address, stop=(stop := threading.Event())) as relay:
        publish(source, 1, eu, relay)
        Bucket(eu.address).answer(Delete(state.NAME))
        relay.news = Waits(stop)
        told: list[str] = []
        relay.run(lambda done: None, told.append)
        assert ["the state object is gone" in text for text in told] == [True]


def test_a_bucket_that_stops_in_the_middle_of_a_version_is_replaced(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eu, us = regions
    asked = threading.Event()

    def stop(method: str, path: str) -> str:
        if not path.endswith(state.NAME):
            asked.wait(PATIENCE)
        return ""

    def note(method: str, path: str) -> str:
        asked.set()
        return ""

    with Mirror(eu.address, us.address) as relay:
        publish(source, 1, eu, relay)
    monkeypatch.setattr(settings, "STALLED", 2 * PATIENCE)
    monkeypatch.setattr(in_order, "_PATIENCE", 1.0)
    eu.proxy.choose, us.proxy.choose = stop, note
    with Mirror(f"{eu.address},{us.address}", str(tmp_path / "here")) as follower:
        fetch(follower)
        assert follower.status.address == us.address


def test_a_version_that_is_damaged_in_the_second_bucket_is_not_fetched_at_each_look_at_the_first(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path
) -> None:
    eu, us = regions
    publish(source, 1, us)
    bucket = Bucket(us.address)
    (whole,) = bucket.objects("data/")
    bucket.put(whole, bytes(bucket.size(whole)))
    eu.is_away = True
    with Mirror(f"{eu.address},{us.address}", str(tmp_path / "here")) as follower:
        with pytest.raises(ConnectionError, match="version 1 came damaged"):
            follower.run_once()
        us.proxy.choose = lambda method, path: "" if path.endswith(state.NAME) else "503 instead"
        assert follower.run_once() is None  # asks the first bucket first
        assert us.proxy.counts.total() == 0


def test_two_buckets_that_are_both_away_do_not_reset_when_a_bucket_answered(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path
) -> None:
    eu, us = regions
    target = tmp_path / "here"
    publish(source, 1, eu)
    with Mirror(f"{eu.address},{us.address}", str(target)) as follower:
        fetch(follower)
        before = copy_note.answered_at(target)
        eu.is_away = us.is_away = True
        with pytest.raises(ConnectionError):
            follower.run_once()
        assert copy_note.answered_at(target) == before is not None


def test_a_restart_after_the_second_bucket_was_followed_ignores_an_older_state_of_the_first(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path
) -> None:
    eu, us = regions
    target = tmp_path / "here"
    with Mirror(eu.address, us.address) as relay:
        publish(source, 1, eu, relay)
    bucket = Bucket(eu.address)
    old = bucket.read()
    assert isinstance(old, Found)
    fleet.choose(eu.address, fleet.pin(eu.address, 1))
    with Mirror(f"{eu.address},{us.address}", str(target)) as follower:
        fetch(follower)
        eu.is_away = True
        follower.run_once()
    eu.is_away = False
    bucket.put(state.NAME, old.content)
    with Mirror(f"{eu.address},{us.address}", str(target)) as follower:
        follower.run_once()
        assert follower.status.address == us.address
        assert ((note := copy_note.read(target)) and note.pinned) == 1


def test_a_pin_in_the_second_bucket_keeps_no_version_from_followers_of_the_first(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path
) -> None:
    eu, us = regions
    with Mirror(eu.address, us.address) as relay, Mirror(f"{eu.address},{us.address}", str(tmp_path / "h")) as follower:
        publish(source, 1, eu, relay)
        fetch(follower)
        fleet.choose(us.address, fleet.pin(us.address, 1))
        publish(source, 2, eu, relay)
        eu.is_away = True
        assert fetch(follower).version.number == 2


def test_a_second_bucket_with_another_training_is_not_followed(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path
) -> None:
    eu, us = regions
    publish(source, 1, eu)
    other = Pair(tmp_path / "other")
    for step in (1, 2):
        publish(other, step, us)
    with Mirror(f"{eu.address},{us.address}", str(tmp_path / "here")) as follower:
        fetch(follower)
        eu.is_away = True
        with pytest.raises(
            ConnectionError, match=r"-us\S*: another training began there: expected versions of run \w{8}"
        ):
            follower.run_once()
        same(source.source, Store(tmp_path / "here"))
    other.close()


def test_servers_go_on_with_the_second_region_when_the_first_is_lost(regions: tuple[Region, Region]) -> None:
    eu, us = regions
    training = Training(eu.address)
    training.publish(1)
    eventually(lambda: training.is_copied(1), lambda: training.mirror.reason)
    training.publisher.close()
    with Mirror(eu.address, us.address) as relay:
        relay.run_once()
    with Follower(Replica("m", f"{eu.address},{us.address}")) as follower:
        follower.sync()
        eu.is_away = True
        successor = Training(us.address)
        successor.publish(2)
        eventually(lambda: serving(follower) == 2, lambda: str(follower.status()))
        successor.publisher.close()
    with Follower(Replica("m", f"{eu.address},{us.address}")) as late:
        late.sync()
        assert serving(late) == 2


class Waits(threading.Event):
    """Ends a mirror at its fourth wait, or the wait `count`, instead of waiting."""

    def __init__(self, stop: threading.Event, count: int = 4) -> None:
        super().__init__()
        self._stop, self._count = stop, count
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        if len(self.seconds) == self._count:
            self._stop.set()
        return False


@pytest.mark.parametrize("is_away", [True, False])
def test_a_bucket_that_answers_nothing_is_asked_soon_and_one_that_fails_less_and_less(
    source: Pair, regions: tuple[Region, Region], is_away: bool
) -> None:
    eu, _ = regions
    source.publish(1)
    publish(source, 2, eu)
    with Mirror(eu.address, str(source.folder / "here"), stop=(stop := threading.Event())) as follower:
        follower.news = waits = Waits(stop)
        eu.is_away = is_away
        eu.proxy.choose = lambda method, path: (
            "request lost" if is_away else "" if path.endswith(state.NAME) else "503 instead"
        )
        follower.run(lambda done: None, lambda reason: None)
    assert (max(waits.seconds) < 1) == is_away, waits.seconds


def test_a_second_bucket_that_fails_reads_is_asked_less_and_less_while_the_first_is_away(
    source: Pair, regions: tuple[Region, Region]
) -> None:
    eu, us = regions
    publish(source, 1, us)
    here = str(source.folder / "here")
    with Mirror(f"{eu.address},{us.address}", here, stop=(stop := threading.Event())) as follower:
        follower.news = waits = Waits(stop)
        eu.is_away = True
        us.proxy.choose = lambda method, path: "" if path.endswith(state.NAME) else "503 instead"
        follower.run(lambda done: None, lambda reason: None)
    assert max(waits.seconds) > 1, waits.seconds


def test_a_target_that_fails_writes_is_asked_less_and_less_while_the_first_source_is_away(
    source: Pair, regions: tuple[Region, Region], seaweedfs: SeaweedFs, folder: str
) -> None:
    eu, us = regions
    asia = Region(seaweedfs, f"{folder}-asia")
    publish(source, 1, us)
    with (
        asia.proxy,
        Mirror(f"{eu.address},{us.address}", asia.address, stop=(stop := threading.Event())) as relay,
    ):
        eu.is_away = True
        relay.run_once()
        publish(source, 2, us)
        relay.news = waits = Waits(stop)
        asia.proxy.choose = lambda method, path: "" if method == "GET" else "503 instead"
        relay.run(lambda done: None, lambda reason: None)
    assert max(waits.seconds) > 1, waits.seconds


def test_a_bucket_that_failed_is_asked_last_for_a_while_unless_all_failed() -> None:
    both = [Bucket(f"s3://{name}/m", store=MemoryStore()) for name in ("eu", "us")]
    order, asked, away = InOrder(both, clock=lambda: 0.0), list[Bucket](), set[Bucket]()

    def ask(bucket: Bucket) -> Bucket:
        asked.append(bucket)
        if bucket in away:
            raise ConnectionError
        return bucket

    away.add(both[0])
    assert [order.first(ask), order.first(ask)] == [both[1], both[1]]
    assert asked == [both[0], both[1], both[1]]
    away.add(both[1])
    with pytest.raises(ConnectionError):
        order.first(ask)
    away.clear()
    assert order.first(ask) is both[0]


@pytest.mark.parametrize("second", ["is older", "is of another training", "is empty"])
def test_a_first_bucket_that_is_away_is_asked_as_often_as_before_while_the_second_cannot_be_followed(
    source: Pair, regions: tuple[Region, Region], tmp_path: Path, second: str
) -> None:
    eu, us = regions
    with Mirror(f"{eu.address},{us.address}", str(tmp_path / "here"), stop=(stop := threading.Event())) as follower:
        if second == "is of another training":
            other = Pair(tmp_path / "other")
            publish(other, 1, us)
            other.close()
        elif second == "is older":
            with Mirror(eu.address, us.address) as relay:
                publish(source, 1, eu, relay)
        publish(source, 2, eu)
        fetch(follower)
        eu.is_away = True
        follower.news = waits = Waits(stop, 8)
        follower.run(lambda done: None, lambda reason: None)
    assert max(waits.seconds) <= IDLE * 1.25, waits.seconds


def test_a_first_bucket_that_is_away_is_asked_every_15_seconds_while_the_second_is_followed() -> None:
    both = [Bucket(f"s3://{name}/m", store=MemoryStore()) for name in ("eu", "us")]
    now, asked = 0.0, list[float]()
    order = InOrder(both, clock=lambda: now)

    def ask(bucket: Bucket) -> None:
        if bucket is both[0]:
            asked.append(now)
            raise ConnectionError

    while now < 100:
        order.first(ask)
        now += IDLE * 1.25
    assert max(later - before for before, later in pairwise(asked)) <= 15


def test_the_third_bucket_is_followed_while_the_first_two_are_away(
    source: Pair, regions: tuple[Region, Region], seaweedfs: SeaweedFs, folder: str, tmp_path: Path
) -> None:
    eu, us = regions
    asia = Region(seaweedfs, f"{folder}-asia")
    with (
        asia.proxy,
        Mirror(eu.address, us.address) as relay,
        Mirror(f"{eu.address},{us.address}", asia.address) as second_relay,
        Mirror(f"{eu.address},{us.address},{asia.address}", str(tmp_path / "here")) as follower,
    ):
        publish(source, 1, eu, relay, second_relay)
        eu.is_away = us.is_away = True
        assert fetch(follower).version.number == 1
        assert follower.status.address == asia.address
        us.is_away = False
        publish(source, 2, us)
        assert fetch(follower).version.number == 2
        assert follower.status.address == us.address
        us.is_away = True
        with pytest.raises(ConnectionError, match=r"-asia\S*: the bucket is older"):
            follower.run_once()


def test_the_copy_of_several_addresses_does_not_depend_on_their_order() -> None:
    assert child.cache_of("s3://eu/m,s3://us/m") == child.cache_of("s3://us/m/,s3://eu/m")
    assert child.cache_of("s3://eu/m,s3://us/m") != child.cache_of("s3://eu/m")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s3://eu/m,s3://eu/m/", "expected different addresses"),
        ("s3://eu/m,/srv/store", "expected an address such as"),
        ("s3://eu/m,", "expected an address such as"),
        ("s3://eu,s3://us/m", ""),
    ],
)
def test_addresses_in_order_are_different_and_of_buckets(text: str, reason: str) -> None:
    if reason:
        with pytest.raises(SettingsError, match=reason):
            buckets(text)
    else:
        assert [bucket.address for bucket in buckets(text)] == text.split(",")


def test_no_secret_of_two_equal_addresses_is_shown() -> None:
    with pytest.raises(SettingsError, match="without another query") as raised:
        buckets("s3://eu/m?key=hidden,s3://eu/m?key=hidden")
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("s3://eu/m?region=eu-west-1", ""),
        ("s3://eu/m?endpoint=https://s3.example.org:9000&region=eu", ""),
        ("s3://eu/m?endpoint=https://s3.example.org:9000/", ""),
        ("s3://eu/m?endpoint=https://s3.example.org/&region=eu", ""),
        ("s3://eu/m?endpoint=https://s3.example.org/eu", r"folder, \?region=REGION"),
        ("s3://eu/m?region=eu&region=us", r"folder, \?region=REGION"),
        ("s3://eu/m?endpoint=s3.example.org", r"folder, \?region=REGION"),
        ("s3://eu/m?key=secret", r"folder, \?region=REGION"),
        ("gs://eu/m?region=eu", "without a query"),
        ("s3://eu/m,s3://us/m", "expected one address, found several"),
    ],
)
def test_an_address_may_name_its_region_and_endpoint(address: str, reason: str) -> None:
    if reason:
        with pytest.raises(SettingsError, match=reason):
            check_address(address)
    else:
        check_address(address)
