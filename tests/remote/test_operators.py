"""What operators see and delete of a bucket: by the command line, over a real S3 server."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paramsync.cli.__main__ import main
from paramsync.cli.bucket import Look, Watch
from paramsync.cli.live import Polled
from paramsync.cli.verify import remote_verdicts
from paramsync.errors import RemoteError
from paramsync.remote import collect, fleet, manifest, protocol
from paramsync.remote.bucket import Bucket
from paramsync.remote.protocol import Delete
from paramsync.remote.state import NAME
from paramsync.remote.upload import Upload
from paramsync.store.commit import StoreWriter
from paramsync.store.store import add_checksum
from paramsync.v1 import graph_pb2
from paramsync.v1 import sync_pb2 as pb
from tests.support.buckets import SeaweedFs, environment
from tests.support.commands import only_line
from tests.support.json_forms import check
from tests.support.keys import keys
from tests.support.mirrors import Pair, same
from tests.support.programs import PATIENCE
from tests.support.servers import SERVING, add_models, serving

COMMANDS = ("versions", "status", "verify", "diff", "gc")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture(scope="module")
def address(seaweedfs: SeaweedFs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket with four versions: 1 whole, the others as deltas."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in seaweedfs.environment.items():
            patch.setenv(name, value)
        found = f"s3://{seaweedfs.bucket}/operators"
        pair = Pair(tmp_path_factory.mktemp("operators"))
        upload = Upload(pair.source, Bucket(found), keep=5, stop=pair.stop)
        for step in range(1, 5):
            pair.publish(step)
            assert upload.run_once() is not None
        pair.close()
        fleet.choose(found, fleet.label(found, "stable", 2))
        yield found


def test_the_status_of_an_address_and_of_servers_has_their_models_that_follow_it(
    address: str, nobody: str, run: Run
) -> None:
    follows = pb.ModelStatus(model="m", state=pb.ModelStatus.SERVING, serving=pb.Version(number=4))
    follows.bucket.address = address
    servers = ["--servers", "", "--trainer", nobody]
    with serving(add_models(follows, SERVING)) as one, serving(add_models(SERVING)) as other:
        servers[1] = f"{one},{nobody}"
        code, text, error = run("status", address, *servers)
        assert code == 1
        assert "version 4, step 4, came " in text
        assert "m: version 4 on 1 server (100%)" in text
        assert "digits" not in text
        assert f"not reachable at {nobody}" in error
        fleet = json.loads(run("status", f"{address}/", *servers, "--json")[1])
        check(fleet, "fleet")
        assert fleet["bucket"]["newest"]["number"] == 4
        assert [server["models"] and len(server["models"]) for server in fleet["servers"]] == [1, None]
        code, text, _ = run("status", address, "--check", "--servers", one)
        assert (code, text) == (1, "degraded: 1 of 2 workers answer\n")
        follows.bucket.address, follows.bucket.addresses = f"{address}-copy", f"{address},{address}-copy"
        with serving(add_models(follows)) as turned:  # because the first bucket did not answer
            assert f"m: bucket {address}-copy" in run("status", address, "--servers", turned)[1]
        code, _, error = run("status", address, "--servers", other)
        assert (code, f"{other} serves no model from {address}" in error) == (1, True)
        code, text, error = run("status", f"{address}-nothing", "--servers", one)
        assert code == 1
        assert "nothing is published there yet" in error


def test_versions_are_listed_with_how_they_are_kept_and_what_operators_chose(address: str, run: Run) -> None:
    code, text, _ = run("versions", address)
    assert code == 0
    assert f"{address}: 4 versions" in text
    assert "delta from 3" in text
    listed = json.loads(run("versions", address, "--json")[1])
    check(listed, "remote_store")
    rows = listed["versions"]
    assert [row["number"] for row in rows] == [1, 2, 3, 4]
    assert [row["bases"] for row in rows] == [[], [1], [2], [3]]
    assert [row["whole_bytes"] is None for row in rows] == [False, True, True, True]
    assert [row["marks"] for row in rows] == [[], ["stable"], [], ["newest"]]
    assert all(0 < row["delta_bytes"] < rows[0]["whole_bytes"] / 10 for row in rows[1:])
    assert listed["bytes"] == rows[0]["whole_bytes"] + sum(row["delta_bytes"] for row in rows)
    assert listed["broken"] == []


def test_what_was_sent_after_a_version_is_listed_with_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paramsync.remote.upload._KEPT", 1)  # a whole version is due each time
    for step in (1, 2, 3):
        pair.publish(step)
        pair.upload.run_once()
    contents = Look(pair.bucket).run_once()
    assert [row.way for row in contents.rows] == ["whole", "whole and delta from 1", "delta from 2"]
    assert contents.bytes == sum((row.whole_bytes or 0) + row.delta_bytes for row in contents.rows)


def test_the_status_of_an_address_says_what_followers_are_to_serve(address: str, run: Run) -> None:
    code, text, _ = run("status", address)
    assert code == 0
    assert "version 4, step 4, came " in text
    assert "stable is version 2" in text
    facts = json.loads(run("status", address, "--json")[1])
    check(facts, "bucket")
    assert facts["newest"]["number"] == 4
    assert (facts["pinned"], facts["labels"], facts["versions"], facts["deltas"]) == (None, {"stable": 2}, 4, 3)
    for option in ("--check", "--trainer=localhost:8503"):  # of servers
        code, _, error = run("status", address, option)
        assert (code, error.count("\n")) == (2, 1)


def test_a_dry_rollback_names_the_version_and_changes_nothing(address: str, run: Run) -> None:
    before = Bucket(address).state()
    code, text, _ = run("rollback", address, "--dry-run")
    assert (code, text) == (0, f"{address}: all followers would serve version 3; stable is version 2\n")
    code, text, _ = run("rollback", address, "--dry-run", "--json")
    assert (code, json.loads(text)["pinned"]) == (0, 3)
    assert Bucket(address).state() == before


@pytest.mark.parametrize("words", [("pin", "3"), ("unpin",), ("rollback",), ("label", "a", "3"), ("unlabel", "stable")])
def test_a_change_of_all_followers_takes_no_server(address: str, nobody: str, run: Run, words: tuple[str, ...]) -> None:
    before = Bucket(address).state()
    command, *rest = words
    code, _, error = run(command, address, *rest, "--server", nobody)
    assert (code, "an address changes all followers" in only_line(error)) == (2, True)
    assert Bucket(address).state() == before


def test_a_version_on_trial_is_promoted_into_the_bucket_of_the_stable_servers(address: str, run: Run) -> None:
    stable = f"{address}-stable"

    def promote() -> list[int]:
        code, said, _ = run("mirror", address, stable, "--once", "--json")
        assert code == 0
        return [json.loads(line)["version"] for line in said.splitlines()]

    fleet.choose(address, fleet.pin(address, 3))  # what the servers on trial serve
    assert promote() == [3]
    assert promote() == []
    fleet.choose(address, fleet.pin(address, None))
    assert promote() == [4]
    assert [version.number for version in Bucket(stable).state().versions] == [3, 4]
    fleet.choose(address, fleet.roll_back(address))
    code, _, said = run("mirror", address, stable, "--once")
    assert (code, "numbers only rise" in only_line(said)) == (1, True)
    fleet.choose(address, fleet.pin(address, None))


def test_verify_and_diff_fetch_the_versions_that_they_look_at(address: str, run: Run) -> None:
    code, text, _ = run("verify", address, "--all", "--json")
    verdicts = json.loads(text)
    assert (code, verdicts["ok"], [row["number"] for row in verdicts["versions"]]) == (0, True, [1, 2, 3, 4])
    assert len(verdicts["versions"][3]["tensors"]) == 6
    code, text, _ = run("diff", address, "--json")
    assert (code, json.loads(text)["old"]["number"], json.loads(text)["new"]["number"]) == (0, 3, 4)
    found = json.loads(run("diff", address, "2", "4", "--top", "1", "--json")[1])
    assert (found["old"]["number"], len(found["parameters"])) == (2, 1)
    code, _, error = run("diff", address, "9", "4")
    assert (code, "version 9" in error, "there are: 1, 2, 3, 4" in error) == (1, True, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("versions", "s3://paramsync/nobody"), 1, "nothing is published there yet"),
        (("status", "s3://paramsync/nobody"), 1, "nothing is published there yet"),
        (("verify", "s3://paramsync/nobody"), 1, "nothing is published there yet"),
        (("diff", "s3://paramsync/nobody"), 1, "nothing is published there yet"),
        (("gc", "s3://paramsync/nobody"), 1, "nothing is published there yet"),
        (("verify", "{address}", "9"), 1, "version 9 of {address} is not there; there are: 1, 2, 3, 4"),
        (("diff", "{address}", "1", "9"), 1, "version 9 of {address} is not there; there are: 1, 2, 3, 4"),
        (("diff", "{address}", "0", "1"), 1, "version 0 of {address} is not there"),
        (("versions", "s3://nowhere-at-all/x"), 1, "there is no such bucket: create it, or correct the address"),
        (("gc", "/tmp"), 2, "expected an address"),
        (("versions", "s3://paramsync/x?secret=1"), 2, "without another query"),
    ],
)
def test_what_cannot_be_looked_at_is_one_line(
    address: str, run: Run, words: tuple[str, ...], code: int, said: str
) -> None:
    found, out, error = run(*(word.format(address=address) for word in words))
    assert (found, out) == (code, "")
    assert said.format(address=address) in only_line(error)
    assert error.startswith(f"paramsync {words[0]}: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_state_of_a_newer_paramsync_is_one_line(address: str, run: Run, command: str) -> None:
    newer = f"{address}-newer"
    Bucket(newer).put("state.json", b'{"format": 99}')
    code, out, error = run(command, newer)
    assert (code, out) == (1, "")
    assert "found format 99, of a newer paramsync: upgrade this one" in only_line(error)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_obstore_or_credentials_the_line_says_what_to_set(
    address: str, run: Run, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    code, out, error = run(command, address)
    assert (code, out) == (1, "")
    assert "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in only_line(error)
    monkeypatch.setitem(sys.modules, "obstore", None)
    code, out, error = run(command, address)
    assert (code, out) == (2, "")
    assert "needs the package obstore: pip install" in only_line(error)


def test_the_commands_run_without_tensorflow(address: str) -> None:
    code = """
import sys
from paramsync.cli.__main__ import main
for words in (["versions"], ["status"], ["verify", "--all"], ["diff"], ["gc", "--dry-run"]):
    assert main([words[0], sys.argv[1], *words[1:]]) == 0, words
unwanted = {"tensorflow", "keras"} & set(sys.modules)
assert not unwanted, unwanted
"""
    subprocess.run([sys.executable, "-c", code, address], check=True, capture_output=True)


def _end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and the rest of the standard error. A process that does not end is killed: the test fails."""
    try:
        _, error = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, error


def test_ctrl_c_ends_a_collection_that_waits_and_nothing_is_deleted(address: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    found = f"{address}-waits"
    bucket = Bucket(found)
    upload = Upload(pair.source, bucket, keep=1, stop=pair.stop)
    for step in (1, 2):
        pair.publish(step)
        upload.run_once()
    pair.close()
    before = bucket.objects()
    command = [sys.executable, "-m", "paramsync.cli", "gc", found, "--grace", "1000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "may still be read: deleted in 17 min" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert _end(process) == (130, "")
    assert bucket.objects() == before


@pytest.mark.parametrize("words", [("versions",), ("status",), ("verify",), ("diff",), ("gc",), ("pin", "1")])
def test_ctrl_c_ends_a_command_while_the_bucket_does_not_answer(words: tuple[str, ...]) -> None:
    command, *rest = words
    with socket.create_server(("127.0.0.1", 0)) as server:
        given = environment(f"http://127.0.0.1:{server.getsockname()[1]}") | {"AWS_READ_TIMEOUT": "1day"}
        line = [sys.executable, "-m", "paramsync.cli", command, "s3://paramsync/x", *rest]
        with subprocess.Popen(line, env=os.environ | given, stderr=subprocess.PIPE, text=True) as process:
            server.settimeout(PATIENCE)
            connection, _ = server.accept()
            connection.settimeout(PATIENCE)
            with connection:
                assert connection.recv(1) == b"G"  # it asks for the state, and waits for the answer
                process.send_signal(signal.SIGINT)
                assert _end(process) == (130, "")


def test_verify_does_not_miss_dropped_versions_but_an_object_that_the_state_still_names(
    address: str, tmp_path: Path
) -> None:
    pair = Pair(tmp_path)
    now = [0.0]
    bucket = Bucket(f"{address}-dropped")
    upload = Upload(pair.source, bucket, keep=2, stop=pair.stop, clock=lambda: now[0])
    for step in (1, 2):
        pair.publish(step)
        upload.run_once()
    _add_missing(bucket, dropped=2, kept=9)
    upload = Upload(pair.source, bucket, keep=2, stop=pair.stop, clock=lambda: now[0])
    verdicts = remote_verdicts(Namespace(store=bucket.address, all=True, version=None), None)
    assert next(verdicts).ok
    for step in range(3, 8):
        pair.publish(step)
        upload.run_once()
        now[0] += 1000
    pair.close()
    assert not [name for name in bucket.objects() if name.endswith("-2.json")]
    [newest] = verdicts
    assert (newest.number, newest.problems) == (7, [f"{bucket.address}/data/1/kept is gone"])


def _add_missing(bucket: Bucket, **needed: int) -> None:
    """Have the state name objects that are not there, each by its name and the last version that needs it."""
    state = bucket.state()
    objects = {f"data/1/{name}": (1, last) for name, last in needed.items()}
    bucket.put(NAME, replace(state, objects={**state.objects, **objects}).to_json())


def test_verify_checks_signatures_and_every_way_to_a_version(address: str, run: Run, tmp_path: Path) -> None:
    """Version 3 is there as a whole, and as a delta from version 2."""
    found, signs, other = f"{address}-signed", keys(tmp_path), keys(tmp_path, "other")
    pair = Pair(tmp_path)
    pair.writer.close()
    pair.writer = StoreWriter(pair.source.path, keep=3, signing_key=signs.private)
    digest = "ab" * 20
    pair.writer.add_graph(digest, add_checksum(graph_pb2.Graph(digest=digest).SerializeToString()))
    bucket = Bucket(found)
    upload = Upload(pair.source, bucket, keep=3, stop=pair.stop)
    for step, changed in ((1, 0), (2, pair.size), (3, pair.size)):
        pair.publish(step, changed, graph=digest)
        upload.run_once()
    pair.close()
    code, text, _ = run("verify", found, "--all", "--trust", str(signs.public), "--json")
    assert (code, [row["signed_by"] for row in json.loads(text)["versions"]]) == (0, [signs.id] * 3)
    code, text, _ = run("verify", found, "--trust", str(other.public), "--json")
    assert (code, "is not trusted" in json.loads(text)["versions"][0]["problems"][0]) == (1, True)
    assert "whole and delta from 2" in run("versions", found)[1]
    prefix = f"1/{bucket.state().run[:8]}"
    for name, said in ((f"data/{prefix}-3", "came damaged"), (f"deltas/{prefix}-2-3", "came damaged as delta")):
        content = bucket.get(name, 1 << 24)
        middle = len(content) // 2
        bucket.put(name, content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        code, text, _ = run("verify", found, "--all", "--json")
        verdicts = json.loads(text)["versions"]
        assert (code, [row["ok"] for row in verdicts]) == (1, [True, True, False]), name
        assert said in " ".join(verdicts[2]["problems"])
        bucket.put(name, content)
    assert run("verify", found, "--all")[0] == 0


def test_a_damaged_delta_that_is_not_the_way_taken_is_named(address: str, run: Run, tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    bucket = Bucket(f"{address}-long")
    upload = Upload(pair.source, bucket, keep=3, stop=pair.stop)
    for step in range(1, 11):  # the delta from 1 to 9 comes with version 10
        pair.publish(step)
        upload.run_once()
    pair.close()
    assert run("verify", bucket.address, "9")[0] == 0
    [name] = [name for name in bucket.objects("deltas") if name.endswith("-1-9")]
    content = bucket.get(name, 1 << 20)
    bucket.put(name, content[:-1] + bytes([content[-1] ^ 1]))
    code, text, _ = run("verify", bucket.address, "--all", "--json")
    problems = [problem for verdict in json.loads(text)["versions"] for problem in verdict["problems"]]
    assert (code, [f"{name}: expected bytes with checksum" in problem for problem in problems]) == (1, [True])


def test_a_manifest_of_an_earlier_release_whose_deltas_have_no_checksum_is_read(pair: Pair) -> None:
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
    newest = pair.bucket.state().versions[-1]
    values = json.loads(pair.bucket.get(newest.manifest, 1 << 20))
    [edge] = values["edges"]
    assert len(edge.pop("crc")) == 8
    content = json.dumps(values).encode()
    digest = hashlib.sha256(content).hexdigest()
    assert [edge.crc for edge in manifest.from_json(content, name="2.json", digest=digest).edges] == [""]


def test_lost_and_cut_objects_are_named(address: str, run: Run) -> None:
    bucket = Bucket(address)
    prefix = f"1/{bucket.state().run[:8]}"
    cut, lost = f"deltas/{prefix}-3-4", f"versions/{prefix}-3.json"
    kept = {name: bucket.get(name, 1 << 20) for name in (cut, lost)}
    bucket.put(cut, kept[cut][:-1])
    bucket.answer(Delete(lost))
    code, text, _ = run("verify", address, "--all", "--json")
    verdicts = json.loads(text)["versions"]
    assert (code, [row["ok"] for row in verdicts]) == (1, [True, True, False, False])
    assert [f"{lost} is gone" in problem for problem in verdicts[2]["problems"]] == [True]
    assert f"{cut}: expected {len(kept[cut])} bytes, found {len(kept[cut]) - 1}" in verdicts[3]["problems"]
    code, text, _ = run("versions", address, "--json")
    assert (code, len(json.loads(text)["versions"]), len(json.loads(text)["broken"])) == (1, 3, 1)
    for name, content in kept.items():
        bucket.put(name, content)
    assert run("verify", address, "--all")[0] == 0


def test_gc_lists_and_deletes_what_a_killed_publisher_left(address: str, run: Run) -> None:
    bucket = Bucket(address)
    mine = bucket.state()
    lost = f"data/{mine.epoch}/{mine.run[:8]}-99"
    bucket.put(lost, b"1234")
    bucket.perform(protocol.take_over("f" * 32, "e" * 32), threading.Event())
    code, text, _ = run("gc", address, "--dry-run")
    assert (code, lost in text, "1 object, 4 B, would be deleted" in text) == (0, True, True)
    assert lost in bucket.objects()
    code, text, _ = run("gc", address, "--grace", "0.001", "--json")
    done = json.loads(text)
    check(done, "collection")
    assert (code, [found["name"] for found in done["objects"]]) == (0, [lost])
    assert lost not in bucket.objects()
    assert bucket.state().condemned == ()
    assert "0 objects, 0 B, deleted" in run("gc", address, "--grace", "0.001")[1]
    assert run("verify", address, "--all")[0] == 0


def test_gc_deletes_what_no_version_needs_and_nothing_else(pair: Pair) -> None:
    for step in range(1, 7):  # versions 1 to 3 are dropped
        pair.publish(step)
        pair.upload.run_once()
    first = pair.bucket.state()
    strangers = {"data/notes.txt", "data/0/backup", f"data/0/{first.run[:8]}-x", "other/1/x", "data/0/abcdefab-1"}
    lost = f"data/{first.epoch}/{first.run[:8]}-99"
    for name in (*strangers, lost):
        pair.bucket.put(name, b"1234")
    assert first.condemned
    assert {found.name for found in collect.list_unneeded(pair.bucket, first)} == {*first.condemned}
    pair.publisher().start()
    state = pair.bucket.state()
    unneeded = collect.list_unneeded(pair.bucket, state)
    assert {found.name: found.condemned for found in unneeded} == {**dict.fromkeys(state.condemned, True), lost: False}
    deleted = collect.delete(pair.bucket, state, unneeded, lambda: None)
    assert deleted == unneeded
    assert pair.bucket.state().condemned == ()
    assert pair.names() == {*state.live, *strangers, "state.json"}
    pair.download.run_once()
    same(pair.source, pair.target)


def test_gc_beside_a_publisher_takes_nothing_from_it(pair: Pair) -> None:
    for step in range(1, 7):
        pair.publish(step)
        pair.upload.run_once()
    state = pair.bucket.state()

    def publish() -> None:
        pair.publish(7)
        pair.upload.run_once()

    deleted = collect.delete(pair.bucket, state, collect.list_unneeded(pair.bucket, state), publish)
    assert {found.name for found in deleted} == {*state.condemned}
    pair.publish(8)
    assert pair.upload.run_once() is not None
    after = pair.bucket.state()
    assert after.live <= pair.names()
    assert not {*after.condemned} & {*state.condemned}
    pair.download.run_once()
    same(pair.source, pair.target)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_follower_that_is_held_before_it_fetches_is_served_beside_gc(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_new: bool, waits: bool
) -> None:
    """If gc waits for the follower, the follower gets the version that it read of; else it goes on to the newest."""

    def publish_whole(*steps: int) -> None:
        for step in steps:
            pair.upload = pair.publisher()
            pair.publish(step)
            pair.upload.run_once()

    publish_whole(1)
    if not is_new:
        pair.download.run_once()
    publish_whole(2)
    get_range, fetched = Bucket.get_range, []

    def held(bucket: Bucket, name: str, start: int, stop: int) -> memoryview:
        monkeypatch.setattr(Bucket, "get_range", get_range)
        publish_whole(3, 4, 5)
        state = bucket.state()
        unneeded = collect.list_unneeded(bucket, state)
        assert name in {found.name for found in unneeded}
        wait = (lambda: fetched.append(get_range(bucket, name, start, stop))) if waits else lambda: None
        assert collect.delete(bucket, state, unneeded, wait) == unneeded
        return fetched[0] if fetched else get_range(bucket, name, start, stop)

    monkeypatch.setattr(Bucket, "get_range", held)
    done = pair.download.run_once()
    assert (None if done is None else done.version.number) == (2 if waits else None)
    pair.download.run_once()
    same(pair.source, pair.target)


def test_gc_stops_if_another_publisher_begins_meanwhile(pair: Pair) -> None:
    for step in range(1, 7):
        pair.publish(step)
        pair.upload.run_once()
    state = pair.bucket.state()
    unneeded = collect.list_unneeded(pair.bucket, state)
    before = pair.names()
    for begun in (lambda: pair.publisher().start(), lambda: None):  # while it waits, and before
        with pytest.raises(RemoteError, match="another publisher has begun"):
            collect.delete(pair.bucket, state, unneeded, begun)
    assert pair.names() == before


def test_a_watched_address_is_told_again_when_it_changes_is_lost_or_comes_back(pair: Pair) -> None:
    look = Look(pair.bucket)
    polled = Polled(look.run_once, 3600.0)
    watch = Watch("s3://bucket/m", polled)

    def told() -> list[str]:
        polled.run_once()
        return [line.partition(" ")[2] for line in watch.lines()]

    assert "nothing is published there yet" in told()[0]
    pair.publish(1)
    pair.upload.run_once()
    assert told() == ["s3://bucket/m: version 1 is the newest"]
    assert told() == []
    pair.bucket.perform(protocol.choose(fleet.pin("s3://bucket/m", 1), "c" * 32), pair.stop)
    assert told() == ["s3://bucket/m: version 1 is the newest; all followers serve version 1, pinned"]
    later = fleet.pin("s3://bucket/m", None, time.time() + 600)
    pair.bucket.perform(protocol.choose(later, "d" * 32), pair.stop)
    text = r"s3://bucket/m: version 1 is the newest; all followers follow the newest version from \d\d:\d\d:\d\d on"
    assert re.fullmatch(text, "".join(told()))
    pair.bucket.perform(protocol.choose(fleet.pin("s3://bucket/m", 1), "e" * 32), pair.stop)
    assert told() == ["s3://bucket/m: version 1 is the newest; all followers serve version 1, pinned"]
    content = pair.bucket.get("state.json", 1 << 16)
    pair.bucket.answer(Delete("state.json"))
    assert "nothing is published there yet" in told()[0]
    pair.bucket.put("state.json", content)
    assert told() == ["s3://bucket/m: version 1 is the newest; all followers serve version 1, pinned"]
