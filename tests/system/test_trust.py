"""A server with --trust quarantines whatever somebody without the key puts into the store, and serves what is good."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.store.store import Store, record_file
from paramsync.v1 import sync_pb2 as pb
from tests.support.inferencers import LONG, Process, of_witness
from tests.support.keys import Keys, keys, listed, renumbered, rewritten
from tests.support.programs import eventually
from tests.support.published import Doubled, Publisher, Witness

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


def test_forged_versions_are_quarantined_with_the_reason_and_the_next_good_one_serves(
    tmp_path: Path, pair: Keys, program: Process
) -> None:
    path, other = tmp_path / "store", keys(tmp_path, "other")

    def publish(number: int, key: Path | None, kind: type[Witness] = Witness) -> None:
        publisher = Publisher(path, keep=50, signing_key=key)
        publisher.publish(number, kind=kind)
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
    listed(path, "ckpt-1", "ckpt-2", "ckpt-3", "ckpt-4")

    aside = tmp_path / "aside"  # good versions, which are harmed before they come into the store
    for number in (5, 6, 7):
        publisher = Publisher(aside, signing_key=pair.private)
        publisher.publish(number, kind=Doubled if number == 7 else Witness)
        publisher.close()
    five, six, seven = (Store(aside).find(number) for number in (5, 6, 7))
    [data] = aside.glob("ckpt-5.data-*")
    content = np.frombuffer(data.read_bytes(), np.float32).copy()
    content[:] = 1e6
    data.write_bytes(content.tobytes())
    [graph] = path.glob("graph-*.pb")
    assert seven.graph not in graph.name
    (aside / graph.name).unlink()
    (aside / f"graph-{seven.graph}.pb").write_bytes((aside / f"graph-{seven.graph}.pb").read_bytes() + b"\x9a\x3e\0")
    for version in (five, six, seven):
        if version is six:
            rewritten(aside, six, finite=not six.finite)
        for file in [*aside.glob(f"{version.prefix}.*"), *aside.glob("graph-*.pb")]:
            file.rename(path / file.name)
        listed(path, "ckpt-1", *(f"ckpt-{number}" for number in range(2, version.number + 1)))
    is_refused(7, "the graph that key")
    is_refused(6, "it was changed, or forged")
    is_refused(5, "the tensors that key")
    record = record_file(path, "ckpt-7")
    record.write_text(json.dumps(json.loads(record.read_text()))[:-20])
    publish(8, pair.private)
    list(program.sync.Sync(pb.SyncRequest(version=8), timeout=LONG))
    assert seen(program) == ({8.0}, 8)
    assert program.process.poll() is None
