"""Bad input of stores, as a table: each is reported in its own way, and changes nothing about what serves."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from paramsync.following.follower import Follower
from paramsync.status import EventKind, State
from tests.support.followers import milestones, quarantined, serving
from tests.support.published import Publisher, ask, captured, follower_of, proven, values

QUARANTINED, REPORTED, PASSED_OVER = "quarantined", "reported", "passed over"


@dataclass(frozen=True)
class Case:
    """`spoil` is done to a store whose versions 1 and 2 are whole, of which version 1 serves."""

    name: str
    spoil: Callable[[Path], object]
    becomes: str
    says: str = ""


def replaced(name: str, content: bytes) -> Callable[[Path], object]:
    """Written aside and renamed, for what serves has the old ones mapped."""

    def replace(store: Path) -> None:
        aside = store / ".tmp-other"
        aside.write_bytes(content)
        aside.replace(store / name)

    return replace


def halved(name: str) -> Callable[[Path], object]:
    return lambda store: replaced(name, (store / name).read_bytes()[: (store / name).stat().st_size // 2])(store)


def flipped(name: str) -> Callable[[Path], object]:
    def flip(store: Path) -> None:
        content = bytearray((store / name).read_bytes())
        content[len(content) // 2] ^= 0xFF
        replaced(name, bytes(content))(store)

    return flip


def gone(name: str) -> Callable[[Path], object]:
    return lambda store: (store / name).unlink()


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def put(store: Path) -> None:
        (store / name).unlink()
        make(store / name)

    return put


def timed(**times: float) -> Callable[[Path], object]:
    """A record with other times."""
    return lambda store: replaced(RECORD, json.dumps({**json.loads((store / RECORD).read_text()), **times}).encode())(
        store
    )


DATA, INDEX, RECORD, STATE = "ckpt-2.data-00000-of-00001", "ckpt-2.index", "ckpt-2.json", "checkpoint"
CASES = [
    Case("data with a flipped bit", flipped(DATA), QUARANTINED, "checksum"),
    Case("data that was cut", halved(DATA), QUARANTINED, "found a file of"),
    Case("data that is empty", replaced(DATA, b""), QUARANTINED, "found a file of 0 bytes"),
    Case("data that is missing", gone(DATA), QUARANTINED, "No such file"),
    Case("a folder in place of the data", instead(DATA, Path.mkdir), QUARANTINED, "regular file"),
    Case("a link to itself", instead(DATA, lambda data: data.symlink_to(data)), QUARANTINED, "ckpt-2"),
    Case("a pipe in place of the data", instead(DATA, os.mkfifo), QUARANTINED, "regular file"),
    Case("an index with a flipped bit", flipped(INDEX), QUARANTINED, "ckpt-2"),
    Case("an index that was cut", halved(INDEX), QUARANTINED, "ckpt-2.index"),
    Case("an index of garbage", replaced(INDEX, os.urandom(500)), QUARANTINED, "ckpt-2.index"),
    Case("an index of another version", lambda store: shutil.copy(store / "ckpt-1.index", store / INDEX), QUARANTINED),
    Case("an index that is missing", gone(INDEX), REPORTED, "ckpt-2"),
    Case("a record of garbage", replaced(RECORD, b"{{{"), REPORTED, "ckpt-2.json"),
    Case("a record that is empty", replaced(RECORD, b""), REPORTED, "ckpt-2.json"),
    Case("a record of a time that nobody can show", timed(committed_at=-1e308), REPORTED, "seconds since the epoch"),
    Case("a pipe in place of the record", instead(RECORD, os.mkfifo), REPORTED, "regular file"),
    Case("a pipe in place of the index", instead(INDEX, os.mkfifo), REPORTED, "regular file"),
    Case("a pipe in place of the list", instead(STATE, os.mkfifo), REPORTED, "regular file"),
    Case("a folder in place of the record", instead(RECORD, Path.mkdir), REPORTED, "ckpt-2.json"),
    Case("a record of another version", lambda store: shutil.copy(store / "ckpt-1.json", store / RECORD), REPORTED),
    Case("a list of versions that is garbage", replaced(STATE, b"\x00\xff garbage {{{"), REPORTED, "checkpoint"),
    Case("a list that leads out of the store", replaced(STATE, b'model_checkpoint_path: "../../x"'), REPORTED, ".."),
    Case("a list of a version that is not there", replaced(STATE, b'model_checkpoint_path: "ckpt-9"'), REPORTED),
    Case("a folder in place of the list", instead(STATE, Path.mkdir), REPORTED, "checkpoint"),
    Case("a list that is empty", replaced(STATE, b""), PASSED_OVER),
    Case("no list", gone(STATE), PASSED_OVER),
    Case("no store", shutil.rmtree, PASSED_OVER),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_serves_goes_on_and_the_fault_is_told(follower: Follower, publisher: Publisher, case: Case) -> None:
    publisher.publish(1)
    follower.run_once()
    publisher.publish(2)
    case.spoil(publisher.path)
    for _ in range(2):
        assert follower.run_once() is None
        status = follower.status()
        assert (status.state, serving(follower), proven(*ask(follower))) == (State.SERVING, 1, True)
        if case.becomes == QUARANTINED:
            assert (quarantined(follower), status.reason, status.quarantines) == ([2], "", 1)
            assert case.says in status.quarantined[0].reason
        elif case.becomes == REPORTED:
            assert quarantined(follower) == []
            assert case.says in status.reason
            assert status.reason
        else:
            assert quarantined(follower) == []
            assert str(publisher.path) in status.reason
    if case.becomes == QUARANTINED:
        late = follower_of(publisher.path)
        late.run_once()
        assert (serving(late), quarantined(late), proven(*ask(late))) == (1, [2], True)


def parameters(change: Callable[[dict[str, np.ndarray], str], object]) -> dict[str, np.ndarray]:
    """Those of version 2, changed at the name of the first."""
    tensors = values(2, captured())
    change(tensors, captured().graph.parameters[0].name)
    return tensors


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors, name: tensors.pop(name), "1 missing"),
        (lambda tensors, name: tensors.update({"of-another": tensors.pop(name)}), "1 missing"),
        (lambda tensors, name: tensors.update({name: np.zeros([3], np.float32)}), "found float32 [3]"),
        (lambda tensors, name: tensors.update({name: np.zeros([64, 32], np.int32)}), "found int32 [64, 32]"),
        (lambda tensors, name: tensors.update({name: np.full([64, 32], np.inf, np.float32)}), "NaN or infinity"),
    ],
    ids=["missing", "another name", "another shape", "another dtype", "infinite"],
)
def test_parameters_that_do_not_fit_are_quarantined_with_both_sides(
    follower: Follower,
    publisher: Publisher,
    change: Callable[[dict[str, np.ndarray], str], object],
    says: str,
) -> None:
    publisher.publish(1)
    follower.run_once()
    publisher.publish(2, tensors=parameters(change))
    follower.run_once()
    assert (serving(follower), quarantined(follower)) == (1, [2])
    assert says in follower.status().quarantined[0].reason
    publisher.publish(3)
    follower.run_once()
    assert (serving(follower), proven(*ask(follower))) == (3, True)


def test_a_quarantined_version_is_not_tried_again_until_it_is_mended(follower: Follower, publisher: Publisher) -> None:
    version = publisher.publish_corrupt(1)
    events = follower.subscribe(lambda: None)
    follower.run_once()
    follower.run_once()
    assert [event.kind for event in milestones(events)] == [EventKind.FOUND, EventKind.RESTORING, EventKind.QUARANTINED]
    publisher.flip(version)  # back again
    follower.run_once()
    assert (serving(follower), quarantined(follower)) == (1, [])


def test_a_quarantined_version_that_was_pruned_is_forgotten(follower: Follower, publisher: Publisher) -> None:
    publisher.publish_corrupt(1)
    follower.run_once()
    for step in range(2, 8):
        publisher.publish(step)
    follower.run_once()
    assert quarantined(follower) == []


def test_a_store_that_becomes_a_file_is_an_error_and_can_come_back(follower: Follower, tmp_path: Path) -> None:
    path = tmp_path / "m"

    path.write_text("not a store")
    follower.run_once()
    assert "expected a directory" in follower.status().reason
    path.unlink()
    publisher = Publisher(path)
    publisher.publish(1)
    follower.run_once()
    assert (serving(follower), follower.status().reason) == (1, "")
    publisher.close()


def test_a_store_that_vanishes_leaves_what_serves_and_is_followed_when_it_starts_over(
    follower: Follower, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    first = Publisher(path)
    first.publish(900)
    follower.run_once()
    first.close()
    shutil.rmtree(path)
    follower.run_once()
    assert (serving(follower), follower.status().published) == (900, None)
    assert proven(*ask(follower))
    second = Publisher(path)
    second.publish(1)
    follower.run_once()
    assert serving(follower) == 1
    assert proven(*ask(follower))
    second.close()


def test_a_rewritten_serving_version_is_restored_again(follower: Follower, tmp_path: Path) -> None:
    path = tmp_path / "m"
    for total in (1.0, 2.0):  # two lives of a store, with the same number
        publisher = Publisher(path)
        publisher.publish(5, tensors=values(total, captured()))
        follower.run_once()
        publisher.close()
        shutil.rmtree(path)
    assert ask(follower) == ([2.0] * 6, 5)
