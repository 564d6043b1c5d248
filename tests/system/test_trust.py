"""A server with --trust quarantines whatever somebody without the key puts into the store, and serves what is good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.store.store import Store
from paramsync.v1 import sync_pb2 as pb
from tests.support.inferencers import LONG, Process, of_witness
from tests.support.keys import Keys, keys, renumbered
from tests.support.programs import eventually
from tests.support.published import Publisher

pytestmark = pytest.mark.slow


@pytest.fixture
def pair(tmp_path: Path) -> Keys:
    return keys(tmp_path)


@pytest.fixture
def program(tmp_path: Path, pair: Keys) -> Iterator[Process]:
    program = Process("--model", f"m={tmp_path / 'store'}", "--trust", pair.public, "--workers", "1")
    program.connect()
    yield program
    program.close()


def seen(program: Process) -> tuple[set[float], int]:
    """The values that answered, and the version that the answer names."""
    answer = program.predict(of_witness(), timeout=LONG)
    return set(tf.make_ndarray(answer.outputs["seen"]).tolist()), answer.model_spec.version.value


def quarantined(program: Process) -> dict[int, str]:
    [status] = program.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models
    return {one.number: one.reason for one in status.quarantined}


@pytest.mark.promise
def test_forged_versions_are_quarantined_with_the_reason_and_the_next_good_one_serves(
    tmp_path: Path, pair: Keys, program: Process
) -> None:
    path, other = tmp_path / "store", keys(tmp_path, "other")

    def publish(number: int, key: Path | None) -> None:
        publisher = Publisher(path, keep=50, signing_key=key)
        publisher.publish(number)
        publisher.close()

    def is_refused(number: int, reason: str) -> None:
        eventually(lambda: reason in quarantined(program).get(number, "") or None, lambda: str(quarantined(program)))
        assert seen(program) == ({1.0}, 1)

    publish(1, pair.private)
    list(program.sync.Sync(pb.SyncRequest(), timeout=LONG))
    assert seen(program) == ({1.0}, 1)
    [status] = program.sync.GetStatus(pb.GetStatusRequest(), timeout=LONG).models
    assert status.signed_by == pair.id
    publish(2, None)
    is_refused(2, "expected a signature")
    publish(3, other.private)
    is_refused(3, f"expected one signed by a trusted key ({pair.id}), found one of key '{other.id}'")
    renumbered(path, Store(path).find(1), 4)
    is_refused(4, "it was changed, or forged")
    publish(8, pair.private)
    list(program.sync.Sync(pb.SyncRequest(version=8), timeout=LONG))
    assert seen(program) == ({8.0}, 8)
    assert program.process.poll() is None
