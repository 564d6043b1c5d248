"""State files and records that chance made: they lead to nothing outside, and are refused in one way only."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from google.protobuf import text_format
from hypothesis import example, given, settings
from hypothesis import strategies as some

from paramsync.errors import CorruptCheckpointError
from paramsync.store.store import Store, problem, read_record, read_state, record_file, state_file
from paramsync.v1 import bundle_pb2
from paramsync.version import Version

T = TypeVar("T")

quick = settings(max_examples=300, deadline=None, derandomize=True)
texts = some.text(some.characters(exclude_categories=["Cs"]))
paths = some.lists(some.sampled_from(["..", ".", "", "/", "a", "ckpt-1", "\0", "\n", "C:", "~", "x" * 300]), max_size=4)
values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | texts,
    lambda inner: some.lists(inner, max_size=2) | some.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
KEYS = [*json.loads(Version(number=1, step=1, prefix="a-1", step_done_at=1.0, snapshot_at=1.0).to_json())]


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def attempt(work: Callable[[], T]) -> T | None:
    """None where it is refused, with a message that can be shown to a person."""
    try:
        return work()
    except CorruptCheckpointError as error:
        said = str(error)
    assert said.startswith(tempfile.gettempdir())
    assert said.isprintable()
    assert len(said) < 1000
    return None


@quick
@given(some.binary())
@example(b"\x1b[2J")
@example(b'model_checkpoint_path: "\\377"')
@example(b'model_checkpoint_path: "\\355\\240\\200"')
@example(b"a {" * 10_000)
@example(b"all_model_checkpoint_timestamps: 1e999999")
def test_a_state_file_of_arbitrary_bytes_is_refused_or_names_nothing(directory: Path, content: bytes) -> None:
    state_file(directory).write_bytes(content)
    assert attempt(lambda: read_state(directory)) is None


@quick
@given(some.lists(paths.map("/".join) | texts, min_size=1, max_size=4))
def test_a_state_file_leads_to_names_in_its_directory_only(directory: Path, listed: list[str]) -> None:
    message = bundle_pb2.CheckpointState(model_checkpoint_path=listed[0], all_model_checkpoint_paths=listed[1:])
    state_file(directory).write_text(text_format.MessageToString(message))
    state = attempt(lambda: read_state(directory))
    for name in state.names if state else ():
        assert (directory / name).resolve().parent == directory.resolve()
        assert len(f".tmp-{name}.data-00000-of-00001".encode()) <= 255


@quick
@given(some.dictionaries(some.sampled_from(KEYS) | texts, values))
@example({"number": 10**400})
@example({"metrics": {"loss": float("nan")}})
@example({"prefix": "../a-1"})
def test_a_record_that_chance_changed_is_refused_or_sound(directory: Path, changes: dict[str, object]) -> None:
    good = Version(number=1, step=1, prefix="a-1", step_done_at=1.0, snapshot_at=1.0)
    record_file(directory, "a-1").write_text(json.dumps(json.loads(good.to_json()) | changes))
    record = attempt(lambda: read_record(directory, "a-1"))
    if record is None:
        return
    assert (record.number, record.prefix) == (1, "a-1")
    assert problem(record) is None
    assert Version.from_json(record.to_json()).number == 1
    assert Store(directory).prefix(record).parent == directory


@quick
@given(some.binary())
@example(b"[" * 100_000)
@example(b"9" * 100_000)
@example(b'{"number": ' + b"9" * 5000 + b"}")
def test_a_record_of_arbitrary_bytes_is_refused(directory: Path, content: bytes) -> None:
    record_file(directory, "a-1").write_bytes(content)
    with pytest.raises(CorruptCheckpointError):
        read_record(directory, "a-1")
