"""What people see of a bucket between a real trainer and a real server: the lag by stages, Watch, the trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paramsync import Follower, Publisher, Replica
from paramsync.cli.__main__ import main
from paramsync.errors import CallError, PublishError, SettingsError
from paramsync.publishing.control_port import Training
from paramsync.remote import mirror
from paramsync.rpc.client import Inferencer, Trainer
from paramsync.v1 import sync_pb2 as pb
from tests.inferencer.serving.test_metrics import parsed
from tests.support.buckets import SeaweedFs
from tests.support.http import call
from tests.support.inferencers import Process
from tests.support.programs import ROOT, Program, eventually
from tests.support.prometheus import queries
from tests.support.published import Witness
from tests.support.traces import collector
from tests.system.test_monitored import prometheus, wait_for_data
from trainer.metrics import MetricsPort, TrainerMetrics

pytestmark = pytest.mark.slow


def in_bucket(publisher: Publisher, number: int) -> Any:
    def bucket() -> Any:
        return publisher.status().bucket

    eventually(lambda: bucket().copied and bucket().copied.number == number, lambda: str(bucket()))
    return bucket()


def serves(server: Inferencer, number: int) -> pb.ModelStatus:
    def status() -> pb.ModelStatus:
        [model] = server.status()
        return model

    eventually(
        lambda: status().serving.number == number and status().bucket.copied.HasField("served_at"),
        lambda: f"version {number}: {status()}",
    )
    return status()


@pytest.fixture
def followed(address: str, tmp_path: Path) -> Iterator[tuple[Publisher, Inferencer, Process]]:
    """A publisher to a bucket, and a server that follows the bucket and watches the publisher."""
    with Publisher(address, Witness(), control_port=0) as publisher:
        assert publisher.control is not None
        arguments = ("--model", f"m={address}", "--cache", tmp_path / "cache", "--workers", "1", "--rest-port", "0")
        process = Process(*arguments, "--trainer", publisher.control)
        try:
            process.connect()
            with Inferencer(process.control_address) as server:
                yield publisher, server, process
        finally:
            process.close()


def test_the_lag_of_a_model_that_follows_a_bucket_is_split_into_its_stages(
    followed: tuple[Publisher, Inferencer, Process], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher, server, process = followed
    for step in (1, 2):
        publisher.publish(step, wait=True)
        in_bucket(publisher, step)
        status = serves(server, step)
    bucket, copied = status.bucket, status.bucket.copied
    assert (bucket.address, bucket.reason, bucket.behind, bucket.newest) == (address, "", 0, 2)
    assert (copied.number, copied.way, copied.deltas) == (2, "delta", 1)
    assert not status.HasField("publisher")  # of a copy, whose lock is the mirror's
    assert 0 < copied.bytes < copied.size
    assert (bucket.whole_bytes, bucket.delta_bytes) == (copied.size, copied.bytes)
    at = [copied.step_done_at, copied.published_at, copied.in_bucket_at, copied.here_at, copied.served_at]
    assert at == sorted(at)
    assert bucket.answered_at >= copied.in_bucket_at

    with Trainer(publisher.control or "") as trainer:
        sent = trainer.status().bucket
    assert (sent.address, sent.newest, sent.behind, sent.copied.number) == (address, 2, 0, 2)
    assert (sent.whole_bytes, sent.copied.way, sent.over) == (bucket.whole_bytes, "delta", False)

    assert main(["status", "--server", process.control_address, "--trainer", publisher.control or ""]) == 0
    text = capsys.readouterr().out
    for words in (
        f"trainer: bucket {address} answered",
        "trainer: version 2 in the bucket",
        f"m: bucket {address} answered",
        "m: version 2 came as 1 delta, ",
        "m: version 2: publish ",
    ):
        assert words in text
    metrics = parsed(call(int(process.http_address.rpartition(":")[2]), "GET", "/metrics").body)
    by_stage = {dict(labels)["stage"] for labels in metrics["paramsync_bucket_stage_duration_seconds"]}
    assert by_stage == {"publish", "upload", "download", "serve"}


def test_each_query_of_the_dashboard_about_buckets_has_data(
    followed: tuple[Publisher, Inferencer, Process], tmp_path: Path
) -> None:
    publisher, server, process = followed
    publisher.publish(1, wait=True)
    in_bucket(publisher, 1)
    serves(server, 1)
    training = Training(publisher=publisher, device="CPU")
    with (
        closing(MetricsPort("127.0.0.1", 0, TrainerMetrics(lambda: training).registry)) as port,
        prometheus(tmp_path / "prometheus", inferencer=process.http_address, trainer=port.address) as ask,
    ):
        wait_for_data(ask, queries(rate_interval="10s", of_buckets=True))


def test_a_trainer_tells_how_versions_get_into_its_bucket(address: str) -> None:
    with Publisher(address, Witness()) as publisher:
        training = Training(publisher=publisher, device="CPU")
        publisher.publish(1, wait=True)
        bucket = in_bucket(publisher, 1)
        found = parsed(TrainerMetrics(lambda: training).text())
    documented = set(re.findall(r"`(paramsync_trainer_bucket[a-z_]+)`", (ROOT / "docs" / "reference.md").read_text()))
    told = {name: values for name, values in found.items() if "trainer_bucket" in name and "created" not in name}
    assert set(told) == documented
    ways = told.pop("paramsync_trainer_bucket_sent_bytes_total")
    assert {dict(labels)["way"]: value for labels, value in ways.items()} == {"whole": bucket.copied.size, "delta": 0}
    values = {name.removeprefix("paramsync_trainer_bucket_"): value for name, [value] in _of_one(told).items()}
    assert values.pop("answer_age_seconds") >= 0
    assert values == {"version": 1, "lag_seconds": 0, "lost": 0, "failures_total": 0}


def _of_one(told: dict[str, dict[Any, float]]) -> dict[str, list[float]]:
    return {name: [*values.values()] for name, values in told.items()}


def test_a_bucket_that_is_away_is_told_at_both_ends_until_it_is_back(
    followed: tuple[Publisher, Inferencer, Process], seaweedfs: SeaweedFs
) -> None:
    publisher, server, _ = followed
    publisher.publish(1, wait=True)
    in_bucket(publisher, 1)
    answered = serves(server, 1).bucket.answered_at

    def bucket() -> pb.Bucket:
        [model] = server.status()
        return model.bucket

    eventually(lambda: bucket().answered_at > answered, lambda: "another answer, though there is nothing new")
    with seaweedfs.away():
        publisher.publish(2, wait=True)
        version = publisher.status().published
        assert version is not None

        def waits() -> Any:
            return publisher.status().bucket

        eventually(lambda: waits().behind == 1, lambda: str(waits()))
        assert waits().waiting_since == version.committed_at
        eventually(lambda: bucket().reason, lambda: "the reason at the server")
        eventually(lambda: publisher.status().last_error, lambda: "the reason at the publisher")
        since = bucket().answered_at
    in_bucket(publisher, 2)
    status = serves(server, 2)
    assert status.bucket.reason == ""
    assert status.bucket.failures > 0
    assert status.bucket.answered_at > since


def have_no_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, mirrors that are started look only once, and when they are told."""
    never = f"from paramsync.remote import mirror; mirror.BUSY = mirror.IDLE = {10**6}"
    (tmp_path / "sitecustomize.py").write_text(never)
    assert (mirror.BUSY, mirror.IDLE) < (10**6, 10**6)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")


def publish_until(publisher: Publisher, serving: Callable[[], int]) -> None:
    """Publish until a version after the first serves: a watch may begin only later."""
    step = 1

    def again() -> bool:
        nonlocal step
        step += 1
        publisher.publish(step, wait=True)
        in_bucket(publisher, step)
        return serving() > 1

    eventually(again, lambda: "a version that no poll could find")


def test_a_replica_that_watches_the_trainer_does_not_wait_for_its_poll(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=f"trainer: expected the address of a bucket with it, found {tmp_path}"):
        Replica("m", tmp_path, trainer="localhost:1")
    with Publisher(address, Witness(), control_port=0) as publisher:
        publisher.publish(1, wait=True)
        in_bucket(publisher, 1)
        have_no_polls(tmp_path, monkeypatch)
        with Follower(Replica("m", address, trainer=publisher.control)) as follower:

            def serving() -> int:
                version = follower.status().serving
                return 0 if version is None else version.number

            eventually(lambda: serving() == 1, lambda: f"{follower.status()}")  # by the first look
            publish_until(publisher, serving)


def test_a_server_that_watches_the_trainer_does_not_wait_for_its_poll(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Publisher(address, Witness(), control_port=0) as publisher:
        publisher.publish(1, wait=True)
        in_bucket(publisher, 1)
        have_no_polls(tmp_path, monkeypatch)
        arguments = ("--model", f"m={address}", "--cache", tmp_path / "cache", "--workers", "1")
        process = Process(*arguments, "--trainer", publisher.control or "")
        try:
            process.connect()
            with Inferencer(process.control_address) as server:
                serves(server, 1)  # by the first look
                publish_until(publisher, lambda: server.status()[0].serving.number)
        finally:
            process.close()


def test_a_publisher_has_its_mirror_send_each_version_at_once(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = f"from paramsync.remote import mirror; mirror._LOCAL = mirror.IDLE = {10**6}"
    (tmp_path / "sitecustomize.py").write_text(never)
    assert (mirror._LOCAL, mirror.IDLE) < (10**6, 10**6)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    with Publisher(address, Witness()) as publisher:
        for step in (1, 2, 3):
            publisher.publish(step, wait=True)
            in_bucket(publisher, step)


def test_watch_of_a_bucket_tells_versions_once_they_are_there(address: str, seaweedfs: SeaweedFs) -> None:
    told: list[int] = []
    with Publisher(address, Witness(), control_port=0) as publisher, Trainer(publisher.control or "") as trainer:
        publisher.subscribe(lambda version: told.append(version.number), in_bucket=True)
        with closing(trainer.watch(in_bucket=True)) as stream:
            versions = iter(stream)
            publisher.publish(1, wait=True)
            assert next(versions).number == 1
            with seaweedfs.away():
                publisher.publish(2, wait=True)
                assert told == [1]
            assert next(versions).number == 2
    assert told == [1, 2]


def test_a_publisher_without_a_bucket_refuses_such_a_watch(tmp_path: Path) -> None:
    with Publisher(tmp_path, Witness(), control_port=0) as publisher, Trainer(publisher.control or "") as trainer:
        with pytest.raises(CallError, match=r"publishes to .*, no bucket"):
            next(iter(trainer.watch(in_bucket=True)))
        with pytest.raises(SettingsError, match="expected a publisher to a bucket"):
            publisher.subscribe(lambda version: None, in_bucket=True)


def test_a_publisher_whose_bucket_is_taken_logs_it_once_and_raises_if_asked_to(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Publisher(address, Witness(), on_error="raise") as first:
        first.publish(1, wait=True)
        in_bucket(first, 1)
        with Publisher(address, Witness()):
            first.publish(2, wait=True)  # of which its mirror learns that it is fenced

            def status() -> Any:
                return first.status().bucket

            eventually(lambda: status().over, lambda: str(status()))
        with pytest.raises(PublishError, match=f"bucket any more: {address}: another publisher has begun"):
            first.publish(3)
        first.publish(4, wait=True)  # training goes on
    [line] = [record.message for record in caplog.records if "training goes on" in record.message]
    assert "another publisher has begun" in line


def test_the_trace_of_a_publication_goes_on_through_the_bucket(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as spans:
        for name, value in spans.environment.items():
            monkeypatch.setenv(name, value)
        arguments = ("--model", f"m={address}", "--cache", tmp_path / "cache", "--workers", "1")
        process = Process(*arguments)
        try:
            process.connect()
            options = ("--state", tmp_path / "state", "--steps", "2", "--every-steps", "2", "--control-port", "0")
            with Program("trainer", "--store", address, *options, log=tmp_path / "log") as program:
                assert program.end() == 0, program.text
            expected = {"publish", "snapshot", "write", "commit", "upload", "download", "serve", "restore", "swap"}

            def whole(seen: list[Any]) -> bool:
                return any(expected <= {span.name for span in seen if span.trace == one.trace} for one in seen)

            seen = spans.wait(whole)
        finally:
            process.close()
    trace = next(one.trace for one in seen if expected <= {span.name for span in seen if span.trace == one.trace})
    named = {span.name: span for span in seen if span.trace == trace}
    upload, download = named["upload"], named["download"]
    assert {upload.parent, download.parent} == {named["publish"].id}
    assert (upload.service, download.service) == ("paramsync-trainer", "paramsync-inferencer")
    assert upload.attributes["paramsync.version"] == download.attributes["paramsync.version"]
    order = [named[name] for name in ("commit", "upload", "download", "restore", "swap")]
    assert [span.begin for span in order[1:]] == sorted(span.begin for span in order[1:])
    assert all(span.begin <= span.end for span in order)
