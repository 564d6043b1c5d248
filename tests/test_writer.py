"""The writing of versions: killed at any step, out of room, durable, shared with the version before."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync import layout
from paramsync.errors import StoreError, StoreLockedError
from paramsync.spares import SPARES
from paramsync.store import Store
from paramsync.version import Version
from paramsync.writer import StoreWriter
from tests.written import FROZEN, tensors, version

ROOT = Path(__file__).parents[1]


def publish(path: Path, *numbers: int, keep: int = 5) -> list[Version]:
    with StoreWriter(path, keep=keep) as writer:
        return [writer.commit(version(number), tensors(number)) for number in numbers]


def assert_whole(path: Path) -> int:
    """Every version that is listed has its values, for us and for TensorFlow; returns the latest."""
    store = Store(path)
    for one in store.versions():
        opened = store.open(one)
        opened.verify(opened.entries)
        reader = tf.train.load_checkpoint(str(store.prefix(one)))
        for name, array in tensors(one.number).items():
            assert np.array_equal(opened.array(name), array)
            assert np.array_equal(reader.get_tensor(name), array)
    latest = store.latest()
    assert latest is not None
    assert tf.train.latest_checkpoint(str(path)) == str(store.prefix(latest))
    return latest.number


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()} - {"publisher.lock", "checkpoint"}


def is_spare(name: str) -> bool:
    return name.startswith(".spare-")


def files_of(*numbers: int) -> set[str]:
    suffixes = ("index", "json", "data-00000-of-00002", "data-00001-of-00002")
    return {f"ckpt-{number}.{suffix}" for number in numbers for suffix in suffixes}


# Killed ---------------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from paramsync.writer import StoreWriter
from tests.written import tensors, version
path, step = Path(sys.argv[1]), int(sys.argv[2])
events = {"os.rename", "os.remove", "os.link", "open", "fcntl.flock", "mmap.__new__", "os.posix_fallocate"}
seen = 0
def kill(event, arguments):
    global seen
    if event in events and (event == "fcntl.flock" or str(path) in str(arguments[0])):
        seen += 1
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
with StoreWriter(path, keep=2) as writer:
    writer.add_graph("ab", b"graph")
    for number in (1, 2, 3, 4):
        writer.commit(version(number, graph="ab"), tensors(number))
    writer.add_graph("cd", b"graph")
    sys.addaudithook(kill)
    for number in (5, 6):
        writer.commit(version(number, graph="cd"), tensors(number))
"""


@pytest.mark.slow
def test_a_publisher_killed_at_any_step_leaves_a_whole_store(tmp_path: Path) -> None:
    """The steps include links to what did not change, and files that are overwritten in place."""
    for step in range(1, 200):
        path = tmp_path / str(step)
        command = [sys.executable, "-c", KILLED, str(path), str(step)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        latest = assert_whole(path)
        assert latest in (4, 5, 6)
        StoreWriter(path).close()
        left = names(path)
        graphs = {"graph-ab.pb"} if latest == 4 else {"graph-cd.pb"} if latest == 6 else {"graph-ab.pb", "graph-cd.pb"}
        found = {name for name in left if not is_spare(name)}
        # a graph that no version had yet may wait for its first
        assert found | {"graph-cd.pb"} == files_of(latest - 1, latest) | graphs | {"graph-cd.pb"}, step
        assert sum(map(is_spare, left)) <= SPARES
        publish(path, 9, keep=2)
        assert assert_whole(path) == 9
        if ended.returncode != -signal.SIGKILL:
            assert ended.returncode == 0, ended.stderr
            assert step > 40
            return
        shutil.rmtree(path)
    pytest.fail("there are fewer steps than that")


HALF_WAY = """
import mmap, sys
from pathlib import Path
import numpy as np
from paramsync.writer import StoreWriter
from tests.written import tensors, version
path, reused = Path(sys.argv[1]), sys.argv[2] == "reused"
broken = path.with_name("broken")
broken.write_bytes(bytes(8000))
with broken.open("r+b") as file:
    missing = np.frombuffer(mmap.mmap(file.fileno(), 8000), np.float32).reshape(40, 50)
    file.truncate(0)  # whoever reads it now is ended by the kernel
with StoreWriter(path, keep=2) as writer:
    for number in range(1, 6 if reused else 2):
        writer.commit(version(number), tensors(number))
    writer.commit(version(7), {**tensors(7), "kernel": missing}, unchanged=["frozen"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("state", "latest"), [("fresh", 1), ("reused", 5)])
def test_a_publisher_that_dies_in_the_middle_of_a_copy_leaves_a_whole_store(
    tmp_path: Path, state: str, latest: int
) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-c", HALF_WAY, str(path), state]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGBUS
    assert any(is_spare(name) for name in names(path)) is (state == "reused")
    assert assert_whole(path) == latest
    publish(path, 8)
    assert assert_whole(path) == 8
    assert not any(name.startswith(".tmp-") for name in names(path))


# Out of room ----------------------------------------------------------------------------------------------------------

FULL = """
import os, sys
from pathlib import Path
import numpy as np
from tests.test_writer import StoreError, StoreWriter, assert_whole, names, tensors, version
path = Path(sys.argv[1])
large = {"large": np.ones(9 << 20, np.uint8)}
with StoreWriter(path, keep=2) as writer:
    for number in (1, 2, 3):
        writer.commit(version(number), tensors(number))
    for number in (4, 5):
        try:
            writer.commit(version(number), {**tensors(number), **large})
        except StoreError as error:
            assert str(error).endswith(f"version {number} was not published: No space left on device"), error
        else:
            raise AssertionError("there was room")
        assert assert_whole(path) == 3
        assert not any(f"ckpt-{number}" in name for name in names(path)), names(path)
    free = os.statvfs(path)
    (path / "other").write_bytes(bytes(free.f_bavail * free.f_frsize - 200_000))
    writer.commit(version(6), tensors(6))
    assert assert_whole(path) == 6
    rest = (path / "rest").open("wb", buffering=0)
    try:
        while rest.write(bytes(4096)):
            pass
    except OSError:
        pass
    try:
        writer.commit(version(7), tensors(7))
    except StoreError as error:
        assert "version 7 was not published: No space left" in str(error), error
    else:
        raise AssertionError("there was room")
    assert assert_whole(path) == 6
    rest.truncate(0)
    writer.commit(version(8), tensors(8))
    assert assert_whole(path) == 8
"""


@pytest.mark.slow
def test_a_full_disk_is_an_error_that_leaves_the_version_before_until_there_is_room(tmp_path: Path) -> None:
    inside = f"mount -t tmpfs -o size=8m none {tmp_path} && exec {sys.executable} -c '{FULL}' {tmp_path}"
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "mount", "-t", "tmpfs", "none", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no test mount a file system of its own")
    subprocess.run([*alone, "sh", "-c", inside], check=True, cwd=ROOT)


def test_a_file_system_without_links_gets_everything_written_again(tmp_path: Path) -> None:
    """What a link cannot do is done by a copy: here the name for the link is taken by what cannot be replaced."""
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(1), tensors(1))
        for file in tmp_path.glob("ckpt-1.data-*"):
            file.rename(tmp_path / "moved")  # a link to it would not be found
        committed = writer.commit(version(2), tensors(2), unchanged=["frozen"])
        assert committed.bytes_written == committed.bytes
    (tmp_path / "ckpt-1.index").unlink()
    assert assert_whole(tmp_path) == 2


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, keep=1) as writer:
        writer.commit(version(1), tensors(1))
        (tmp_path / "ckpt-1.data-more").mkdir()  # which unlink cannot remove
        for number in range(2, 10):
            writer.commit(version(number), tensors(number))
        left = {name for name in names(tmp_path) if not is_spare(name) and not name.startswith("ckpt-1.data")}
        assert left == files_of(9) | {".unlisted-ckpt-1"}
        assert sum(map(is_spare, names(tmp_path))) <= SPARES


# Durable --------------------------------------------------------------------------------------------------------------

DURABLE = """
import os, sys
from pathlib import Path
from paramsync.writer import StoreWriter
from tests.written import tensors, version
with StoreWriter(Path(sys.argv[1]), keep=1, durable=sys.argv[2] == "durable") as writer:
    for number in (1, 2, 3, 4):
        writer.commit(version(number), tensors(number))
    Path(sys.argv[1], "now").touch()
    writer.commit(version(5), tensors(5))
"""


def synced(path: Path, mode: str) -> list[str]:
    """What a publication had synced to the disk and renamed, in order."""
    log = path.with_name("log")
    traced = ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync,rename,openat", "-o", str(log)]
    command = [*traced, sys.executable, "-c", DURABLE, str(path), mode]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    lines = log.read_text().splitlines()
    (begin,) = [at for at, line in enumerate(lines) if f"{path}/now" in line and "O_CREAT" in line]
    found = []
    for line in lines[begin:]:
        if "sync(" in line:
            found.append("sync " + line.split("<")[1].split(">")[0].removeprefix(str(path)).lstrip("/"))
        elif "rename(" in line:
            found.append("name " + line.split('"')[3].removeprefix(str(path)).lstrip("/"))
    return [one for one in found if ".unlisted" not in one and "name .spare" not in one]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to see what the kernel is asked for")
def test_a_durable_version_is_on_the_disk_step_by_step(tmp_path: Path) -> None:
    assert synced(tmp_path / "store", "durable") == [
        "sync .spare-ckpt-3.data-00001-of-00002",
        "name ckpt-5.data-00001-of-00002",
        "sync .tmp-ckpt-5.index",
        "name ckpt-5.index",
        "sync .tmp-ckpt-5.json",
        "name ckpt-5.json",
        "sync ",
        "sync .tmp-checkpoint",
        "name checkpoint",
        "sync ",
    ]
    assert [one for one in synced(tmp_path / "other", "") if one.startswith("sync")] == []


# Shared ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_versions_share_what_did_not_change_and_files_go_round(tmp_path: Path, keep: int) -> None:
    inodes: set[int] = set()
    with StoreWriter(tmp_path, keep=keep) as writer:
        for number in range(1, 20):
            committed = writer.commit(version(number), tensors(number))
            assert assert_whole(tmp_path) == number
            inodes.update(file.stat().st_ino for file in tmp_path.glob("ckpt-*.data-*"))
            if number > 1:
                assert committed.bytes_written == committed.bytes - FROZEN.nbytes
                assert writer.unchanged == {"frozen"}
            if number > keep + 3:
                assert sum(map(is_spare, names(tmp_path))) == 1
    assert len(inodes) == keep + 2  # what is frozen, what is trained in each version, and the one to be written next


def test_a_record_says_what_was_written_and_what_it_is(tmp_path: Path) -> None:
    first, second, third = publish(tmp_path, 1, 2, 3)
    assert first.bytes == first.bytes_written == sum(array.nbytes for array in tensors(1).values())
    assert second.bytes_written == first.bytes - FROZEN.nbytes
    assert len({first.checksum, second.checksum, third.checksum}) == 3
    assert Store(tmp_path).versions() == [first, second, third]


def test_a_publication_that_failed_is_not_what_the_next_is_compared_with(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, keep=2) as writer:
        writer.commit(version(1), tensors(1))
        (tmp_path / ".tmp-ckpt-2.json").mkdir()
        with pytest.raises(StoreError, match="version 2 was not published"):
            writer.commit(version(2), {**tensors(2), "frozen": FROZEN + 1})
        (tmp_path / ".tmp-ckpt-2.json").rmdir()
        assert not any("ckpt-2" in name and not is_spare(name) for name in names(tmp_path))
        committed = writer.commit(version(3), tensors(3))
        assert committed.bytes_written == committed.bytes - FROZEN.nbytes
    assert assert_whole(tmp_path) == 3


def test_a_version_that_is_held_stays_as_it_is_while_others_go_round(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with StoreWriter(tmp_path, keep=1) as writer:
        writer.commit(version(1), tensors(1))
        held = store.open(store.find(1))
        for number in range(2, 12):
            writer.commit(version(number), tensors(number))
            held.verify(held.entries)
            assert np.array_equal(held.array("kernel"), tensors(1)["kernel"])
    assert assert_whole(tmp_path) == 11


def test_a_checkpoint_of_another_writer_is_found_though_the_state_was_remembered(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.commit(version(1), tensors(1))
        tf.train.Checkpoint(weights=tf.Variable(1.0)).write(str(tmp_path / "theirs-5"))
        tf.compat.v1.train.update_checkpoint_state(
            str(tmp_path), "theirs-5", all_model_checkpoint_paths=["ckpt-1", "theirs-5"]
        )
        with pytest.raises(StoreError, match="expected a version above 5"):
            writer.commit(version(2), tensors(2))
        writer.commit(version(6), tensors(6))
    assert [one.prefix for one in Store(tmp_path).versions()] == ["ckpt-1", "theirs-5", "ckpt-6"]


def test_a_checkpoint_of_another_writer_is_listed_until_its_last_file_is_gone(tmp_path: Path) -> None:
    listed = []
    with StoreWriter(tmp_path) as writer:
        tf.train.Checkpoint(weights=tf.Variable(1.0)).write(str(tmp_path / "theirs-1"))
        tf.compat.v1.train.update_checkpoint_state(str(tmp_path), "theirs-1")
        for number, suffix in enumerate(["index", "data-00000-of-00001", None], 2):
            writer.commit(version(number), tensors(number))
            state = layout.read_state(tmp_path)
            assert state is not None
            listed.append(state.names)
            if suffix is not None:
                (tmp_path / f"theirs-1.{suffix}").unlink()
    assert listed == [("theirs-1", "ckpt-2"), ("theirs-1", "ckpt-2", "ckpt-3"), ("ckpt-2", "ckpt-3", "ckpt-4")]


def test_closing_leaves_nothing_open(tmp_path: Path) -> None:
    publish(tmp_path, *range(1, 10), keep=2)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [link for link in links if str(tmp_path) in os.fspath(link.readlink())]


# A store that goes away -----------------------------------------------------------------------------------------------


def test_a_store_that_was_removed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with StoreWriter(path) as writer:
        writer.commit(version(1), tensors(1))
        shutil.rmtree(path)
        writer.commit(version(2), tensors(2), unchanged=["frozen"])  # the same, but there is nothing left of it
        writer.commit(version(3), tensors(3), unchanged=["frozen"])
    assert assert_whole(path) == 3


def test_a_store_that_was_replaced_has_one_publisher_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with StoreWriter(path) as first:
        first.commit(version(1), tensors(1))
        path.rename(tmp_path / "aside")
        with StoreWriter(path) as second:
            second.commit(version(5), tensors(5))
            with pytest.raises(StoreLockedError, match=f"process {os.getpid()} on"):
                first.commit(version(6), tensors(6))
            second.commit(version(7), tensors(7))
        first.commit(version(8), tensors(8))  # the other one has gone
    assert assert_whole(path) == 8


def test_a_store_above_which_there_is_no_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model-999999999999999999"')
    with pytest.raises(StoreError, match="no number; publish to another store"):
        StoreWriter(tmp_path)


# What strangers do to a store -----------------------------------------------------------------------------------------


def largest(path: Path, number: int) -> Path:
    return max(path.glob(f"ckpt-{number}.data-*"), key=lambda file: file.stat().st_size)


@pytest.mark.parametrize("told", [[], ["frozen", "kernel", "bias"]], ids=["compared", "told"])
@pytest.mark.parametrize("harm", ["cut", "changed"])
def test_a_data_file_that_a_stranger_harmed_is_written_anew(tmp_path: Path, harm: str, told: list[str]) -> None:
    with StoreWriter(tmp_path, keep=2) as writer:
        writer.commit(version(1), tensors(1))
        file = largest(tmp_path, 1)
        if harm == "cut":
            os.truncate(file, 100)
        else:
            with file.open("r+b") as harmed:
                harmed.write(b"harm")
        writer.commit(version(2), tensors(1), unchanged=told)
        opened = Store(tmp_path).open(Store(tmp_path).find(2))
        opened.verify(opened.entries)
        assert all(np.array_equal(opened.array(name), array) for name, array in tensors(1).items())


def test_a_graph_file_that_is_broken_is_written_anew_by_the_next_publisher(tmp_path: Path) -> None:
    for number in (1, 2):
        with StoreWriter(tmp_path) as writer:
            writer.add_graph("ab12", b"graph")
            writer.commit(version(number, graph="ab12"), tensors(number))
        assert Store(tmp_path).graph_file("ab12").read_bytes() == b"graph"
        os.truncate(Store(tmp_path).graph_file("ab12"), 0)


def test_closing_in_a_forked_child_leaves_the_parent_its_store(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from paramsync.writer import StoreWriter; from paramsync.errors import StoreLockedError\n"
        "writer = StoreWriter(Path(sys.argv[1]))\n"
        "if os.fork() == 0:\n    writer.close()\n    os._exit(0)\n"
        "os.wait()\n"
        "try:\n    StoreWriter(Path(sys.argv[1]))\n"
        "except StoreLockedError:\n    print('locked')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "locked\n"


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_lies_under_a_temporary_name_is_replaced_and_never_followed(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("safe")
    store = tmp_path / "store"
    with StoreWriter(store) as writer:
        if kind == "link":
            (store / ".tmp-checkpoint").symlink_to(victim)
        else:
            os.mkfifo(store / ".tmp-checkpoint")
        writer.commit(version(1), tensors(1))
    assert victim.read_text() == "safe"
    assert assert_whole(store) == 1


def test_a_mark_without_a_name_removes_nothing_outside(tmp_path: Path) -> None:
    store = tmp_path / "store"
    outside = tmp_path / "store.index"
    outside.write_text("safe")
    with StoreWriter(store) as writer:
        (store / ".unlisted-").touch()
        writer.commit(version(1), tensors(1))
    assert outside.read_text() == "safe"
    assert not (store / ".unlisted-").exists()


def test_a_version_whose_times_nobody_could_read_is_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer, pytest.raises(StoreError, match="expected times in seconds since the epoch"):
        writer.commit(replace(version(1), step_done_at=float("nan")), tensors(1))


def test_metrics_of_numpy_are_numbers_too(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.commit(replace(version(1), metrics={"loss": np.float32(0.5)}), tensors(1))  # type: ignore[dict-item]
    assert Store(tmp_path).find(1).metrics == {"loss": 0.5}
