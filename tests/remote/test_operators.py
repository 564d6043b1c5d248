"""What operators see and delete of a bucket: by the command line, over a real S3 server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest

from paramsync.cli.__main__ import main
from paramsync.remote import collect, fleet, protocol
from paramsync.remote.bucket import Bucket
from paramsync.remote.upload import Upload
from tests.support.buckets import SeaweedFs
from tests.support.json_forms import check
from tests.support.mirrors import Pair

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


def test_versions_are_listed_with_what_was_sent_and_what_operators_chose(address: str, run: Run) -> None:
    code, text, _ = run("versions", address)
    assert code == 0
    assert f"{address}: 4 versions" in text
    listed = json.loads(run("versions", address, "--json")[1])
    check(listed, "remote_store")
    assert [row["number"] for row in listed["versions"]] == [1, 2, 3, 4]
    assert [row["way"] for row in listed["versions"]] == ["whole", "delta", "delta", "delta"]
    assert [row["marks"] for row in listed["versions"]] == [[], ["stable"], [], ["newest"]]
    first, *others = listed["versions"]
    assert all(row["sent"] < first["sent"] / 10 for row in others)
    assert listed["bytes"] == sum(row["sent"] for row in listed["versions"])
    assert listed["broken"] == []


def test_the_status_of_an_address_says_what_followers_are_to_serve(address: str, run: Run) -> None:
    code, text, _ = run("status", address)
    assert code == 0
    assert "version 4, step 4" in text
    assert "stable is version 2" in text
    facts = json.loads(run("status", address, "--json")[1])
    check(facts, "bucket")
    assert facts["newest"]["number"] == 4
    assert (facts["pinned"], facts["labels"], facts["versions"]) == (None, {"stable": 2}, 4)
    assert run("status", address, "--check")[0] == 2


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
        (("gc", "/tmp"), 2, "expected an address"),
        (("versions", "s3://paramsync/x?secret=1"), 2, "without a query"),
    ],
)
def test_what_cannot_be_looked_at_is_one_line(
    address: str, run: Run, words: tuple[str, ...], code: int, said: str
) -> None:
    found, out, error = run(*words)
    assert (found, out) == (code, "")
    assert said in error
    assert error.startswith(f"paramsync {words[0]}: ")
    assert error.count("\n") == 1


def test_lost_and_cut_objects_are_named(address: str, run: Run) -> None:
    bucket = Bucket(address)
    prefix = f"1/{bucket.state().run[:8]}"
    cut, lost = f"deltas/{prefix}-3-4", f"versions/{prefix}-3.json"
    kept = {name: bucket.get(name, 1 << 20) for name in (cut, lost)}
    bucket.put(cut, kept[cut][:-1])
    bucket.delete(lost)
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
    later = protocol.take_over("f" * 32, "e" * 32)
    bucket.perform(later, threading.Event())
    assert run("gc", address, "--dry-run")[1].splitlines()[0] == f"{lost}: 4 B, which no state names"
    assert lost in bucket.sizes()
    code, text, _ = run("gc", address, "--grace", "0.001", "--json")
    assert (code, json.loads(text)["objects"]) == (0, [lost])
    check(json.loads(text), "collection")
    assert lost not in bucket.sizes()
    assert run("verify", address, "--all")[0] == 0


def test_gc_deletes_what_no_version_needs_and_nothing_else(pair: Pair) -> None:
    for step in (1, 2):
        pair.publish(step)
        pair.upload.run_once()
    state = pair.bucket.state()
    strangers = {"data/notes.txt", "data/0/backup", "other/1/x"}
    lost = f"data/{state.epoch}/{state.run[:8]}-99"
    for name in (*strangers, lost):
        pair.bucket.put(name, b"1234")
    assert collect.list_unnamed(pair.bucket, state) == {}  # the publisher of this epoch may be about to name it
    pair.publisher().start()
    later = pair.bucket.state()
    assert collect.list_unnamed(pair.bucket, later) == {lost: 4}
    unnamed = collect.list_unnamed(pair.bucket, later)
    assert collect.delete(pair.bucket, [*unnamed, *later.condemned, *later.live]) == [lost]
    assert pair.names() == {*later.live, *strangers, "state.json"}
