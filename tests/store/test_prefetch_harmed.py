"""What was guessed to be the next file and is not, or is gone, or cut: nobody gets a wrong answer, nothing is kept."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.errors import CorruptCheckpointError
from paramsync.following.replica import Replica
from tests.support.wide import FIRST, SIZE, Store, Table, answers, begin, deleted, follow, places, prepare


@pytest.fixture
def replica(wide: Store) -> Replica:
    return Replica("m", wide.path)


def test_a_spare_that_somebody_else_holds_is_guessed_less_and_less_often(wide: Store, replica: Replica) -> None:
    last = begin(wide, replica)
    (spare,) = wide.spares
    with spare.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        guessed = []
        for number in range(last + 1, last + 13):
            guessed.append(bool(places(spare)))
            follow(replica, wide.publish(number))
            assert answers(replica, number)
    assert guessed == [True, True, False, True, False, False, False, True, *[False] * 4]


def test_an_older_version_that_is_restored_is_no_wrong_guess(wide: Store, replica: Replica) -> None:
    last = begin(wide, replica)
    (spare,) = wide.spares
    old = replica.take(last - 1).version
    for _ in range(5):
        replica.restore(old)
        assert not places(spare)
        prepare(replica)
        assert places(spare)


def test_a_guess_that_was_wrong_is_not_kept(wide: Store, replica: Replica) -> None:
    last = begin(wide, replica)
    (spare,) = wide.spares
    with spare.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        restored = replica.restore(wide.publish(last + 1))
        assert not places(spare)
        replica.swap(restored)
    assert answers(replica, last + 1)


def test_a_spare_that_is_removed_is_let_go_of(wide: Store, replica: Replica) -> None:
    last = begin(wide, replica)
    wide.spares[0].unlink()
    assert not replica.prepare()
    assert not deleted(wide.path)
    follow(replica, wide.publish(last + 1))
    assert answers(replica, last + 1)


def test_a_spare_that_is_cut_or_grows_harms_nobody(wide: Store, replica: Replica) -> None:
    last = begin(wide, replica)
    for number, size in ((last + 1, 4096), (last + 2, 2 * SIZE), (last + 3, 0)):
        os.truncate(wide.spares[0], size)
        assert answers(replica, number - 1)
        follow(replica, wide.publish(number))
        assert answers(replica, number)
        prepare(replica)


def test_what_is_no_regular_file_is_left_alone(wide: Store, replica: Replica, tmp_path: Path) -> None:
    begin(wide, replica)
    for number in range(FIRST + 1, FIRST + 4):
        version = wide.publish(number)
        secret = tmp_path / f"secret-{number}"
        secret.write_bytes(bytes(SIZE))
        names = [wide.path / f".spare-{wide.data(old).name}" for old in (1, 2, 3)]
        names[0].symlink_to(secret)
        os.mkfifo(names[1])
        names[2].mkdir()
        follow(replica, version)
        assert answers(replica, number)
        assert not places(secret)
        names[0].unlink()
        names[1].unlink()
        names[2].rmdir()


def test_a_version_of_another_size_is_no_wrong_answer(wide: Store, replica: Replica) -> None:
    last = begin(wide, replica)
    broken = wide.publish(last + 1, rows=SIZE // 8192)
    with pytest.raises(Exception, match="expected"):
        replica.restore(broken)
    assert answers(replica, last)
    for number in range(last + 2, last + 5):
        follow(replica, wide.publish(number))
        assert answers(replica, number)


def test_what_was_mapped_ahead_is_locked_for_as_long_as_it_is_in_memory(wide: Store, replica: Replica) -> None:
    last = begin(wide, replica)
    mapped = places(wide.spares[0])
    number = last + 1
    follow(replica, wide.publish(number))
    with wide.data(number).open("rb") as other:
        assert places(wide.data(number)) == mapped
        replica.label("old", replica.take(number))
        for later in range(number + 1, number + 8):
            follow(replica, wide.publish(later))
        assert answers(replica, number)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        replica.unlabel("old")
        while number in replica.leaving:
            replica.tend()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_files_that_are_being_written_or_are_not_ours_are_left_alone(wide: Store, replica: Replica) -> None:
    for number in (1, 2):
        follow(replica, wide.publish(number))
    others = [wide.path / f"{name}.data-00000-of-00001" for name in (".tmp-ckpt-9", "model-9", ".spare-model-9")]
    for one in others:
        one.touch()
        os.truncate(one, wide.data(2).stat().st_size)
    assert not replica.prepare()
    assert [(one.stat().st_blocks, places(one)) for one in others] == [(0, set())] * 3


def test_a_publisher_that_needs_room_has_it_though_a_follower_has_its_spare_mapped(
    wide: Store, replica: Replica
) -> None:
    last = begin(wide, replica)
    (spare,) = wide.spares
    with spare.open("rb") as other:
        assert os.fstat(other.fileno()).st_blocks * 512 >= SIZE
        wide.make_room()
        found = os.fstat(other.fileno())
    assert (found.st_nlink, found.st_blocks) == (0, 0)
    assert found.st_size >= SIZE  # whoever has it mapped may read it
    follow(replica, wide.publish(last + 1))
    assert answers(replica, last + 1)


def test_a_spare_that_is_held_keeps_its_bytes_when_a_publisher_makes_room(wide: Store, replica: Replica) -> None:
    last = begin(wide, replica)
    replica.label("old", replica.take(last))
    for number in range(last + 1, last + 4):
        follow(replica, wide.publish(number))
    wide.make_room()
    assert not wide.spares
    assert answers(replica, last)


def test_after_a_version_that_cannot_be_used_there_is_another_guess(wide: Store, replica: Replica) -> None:
    last = begin(wide, replica)
    version = wide.publish(last + 1)
    with wide.data(last + 1).open("r+b") as file:
        file.write(bytes(4))
    with pytest.raises(CorruptCheckpointError):
        replica.restore(version)
    for number in (last + 2, last + 3):  # the file of the damaged one is a spare then
        wide.publish(number)
    prepare(replica)
    assert any(places(spare) for spare in wide.spares)


def test_what_is_mapped_of_a_store_that_is_one_of_saved_models_now_is_let_go_of(wide: Store, replica: Replica) -> None:
    begin(wide, replica)
    (spare,) = wide.spares
    assert places(spare)
    for one in wide.path.iterdir():
        if one != spare:
            one.unlink()
    model = Table()
    tf.saved_model.save(model, str(wide.path / "1000"), signatures=model.__call__)
    (version,) = replica.source.look().published or []
    replica.swap(replica.restore(version.version))
    replica.tend()
    assert not places(spare)
