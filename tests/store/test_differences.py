"""What differs between two versions, as numpy would compute it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from paramsync.dtypes import Array
from paramsync.store import differences as module
from paramsync.store.commit import StoreWriter
from paramsync.store.differences import EDGES, Difference, differences
from paramsync.store.store import Store
from tests.support import partitioned
from tests.support.written import FROZEN, publish, version


def compared(path: Path, *versions: Mapping[str, Array]) -> list[Difference]:
    """The differences between two versions of these tensors."""
    with StoreWriter(path) as writer:
        before, after = [writer.commit(version(number), tensors) for number, tensors in enumerate(versions, 1)]
    return differences(Store(path), before, after)


def only(path: Path, before: Array, after: Array) -> Difference:
    (difference,) = compared(path, {"w": before}, {"w": after})
    return difference


def test_a_difference_has_the_figures_that_numpy_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ELEMENTS", 100)  # many portions
    generator = np.random.default_rng(1)
    before = generator.standard_normal((37, 29), np.float32)
    after = before.copy()
    after[5:] += generator.standard_normal((32, 29), np.float32) * 1e-3
    found = only(tmp_path, before, after)
    change = after.astype(np.float64) - before
    norm, norm_before = np.linalg.norm(change), np.linalg.norm(before.astype(np.float64))
    assert (found.name, found.kind, found.dtype, found.shape) == ("w", "changed", "float32", (37, 29))
    assert (found.elements, found.changed) == (37 * 29, int(np.count_nonzero(change)))
    assert found.norm == pytest.approx(norm)
    assert found.norm_before == pytest.approx(norm_before)
    assert found.relative == pytest.approx(norm / norm_before)
    assert found.largest == np.abs(change).max()
    magnitudes = np.abs(change[change != 0])
    assert found.histogram == tuple(np.histogram(np.maximum(magnitudes, EDGES[0]), EDGES)[0].tolist())


def test_those_that_changed_most_come_first_then_others_by_name(tmp_path: Path) -> None:
    before = {"a": np.ones(3), "b": np.ones(3), "c": np.zeros(3), "d": np.ones(3), "shape": np.ones(2), "z": np.ones(1)}
    after = {
        "a": np.ones(3) * 1.1,
        "b": np.ones(3) * 2,
        "c": np.ones(3),
        "d": np.ones(3),
        "shape": np.ones(3),
        "y": np.ones(1),
    }
    found = compared(tmp_path, before, after)
    order = [("c", "changed"), ("b", "changed"), ("a", "changed"), ("shape", "reshaped"), ("y", "added")]
    assert [(each.name, each.kind) for each in found] == [*order, ("z", "removed"), ("d", "unchanged")]
    assert found[0].relative == math.inf
    reshaped, added = found[3:5]
    assert (reshaped.shape_before, reshaped.shape, reshaped.norm) == ((2,), (3,), None)
    assert (added.shape_before, added.dtype_before) == (None, None)


@pytest.mark.parametrize(
    ("before", "after", "norm", "changed"),
    [
        (np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 4], ml_dtypes.bfloat16), 2.0, 1),
        (np.array([1, 2], np.float32), np.array([1, 4], ml_dtypes.bfloat16), 2.0, 1),
        (np.array([1, 2], ml_dtypes.float8_e4m3fn), np.array([2, 2], ml_dtypes.float8_e4m3fn), 1.0, 1),
        (np.array([1, 2], ml_dtypes.int4), np.array([1, -2], ml_dtypes.int4), 4.0, 1),
        (
            np.array([[1], [2]], "i1").view([("qint8", "i1")]),
            np.array([[1], [5]], "i1").view([("qint8", "i1")]),
            3.0,
            1,
        ),
        (np.array([True, False]), np.array([True, True]), 1.0, 1),
        (np.array([3 + 4j, 0]), np.array([0, 0j]), 5.0, 1),
        (np.array([1 << 60, 0]), np.array([(1 << 60) + 1, 0]), 0.0, 1),
        (np.array([0, 200], np.uint8), np.array([200, 0], np.uint8), 200 * math.sqrt(2), 2),
        (np.array([1e200, 0.0]), np.array([0.0, 0.0]), 1e200, 1),
        (np.array([1e-300, 0.0]), np.array([0.0, 0.0]), 1e-300, 1),
    ],
)
def test_numbers_of_every_kind_are_compared(
    tmp_path: Path, before: Array, after: Array, norm: float, changed: int
) -> None:
    found = only(tmp_path, before, after)
    assert (found.kind, found.changed) == ("changed", changed)
    assert found.norm == pytest.approx(norm)


def test_nan_and_infinity_are_counted_and_left_out(tmp_path: Path) -> None:
    nan, inf = math.nan, math.inf
    found = only(tmp_path, np.array([nan, inf, 1.0, 3.0, 4.0]), np.array([nan, inf, nan, -inf, 6.0]))
    assert (found.changed, found.not_finite) == (3, 4)
    assert (found.norm, found.norm_before, found.relative, found.largest) == (2.0, 4.0, 0.5, 2.0)


def test_strings_change_by_share_alone(tmp_path: Path) -> None:
    found = only(tmp_path, np.array([b"a", b"b", b"c"], object), np.array([b"a", b"x", b"yy"], object))
    assert (found.kind, found.changed, found.elements, found.norm) == ("changed", 2, 3, None)


def test_what_both_versions_have_in_one_file_is_not_read(tmp_path: Path) -> None:
    first, second = publish(tmp_path, 1, 2)  # with a tensor that stays, and so has a file of both
    (shared,) = (file for file in tmp_path.glob("ckpt-2.data-*") if file.stat().st_nlink > 1)
    with shared.open("r+b") as file:
        file.seek(Store(tmp_path).open(second).entries["frozen"].offset)
        file.write(b"\1" * FROZEN.nbytes)  # whoever read it would find another checksum
    found = {each.name: each for each in differences(Store(tmp_path), first, second)}
    assert (found["frozen"].kind, found["frozen"].norm, found["frozen"].norm_before) == ("unchanged", 0.0, None)
    assert found["kernel"].kind == "changed"


def test_versions_of_equal_records_are_not_read(tmp_path: Path) -> None:
    tensors = {"w": np.ones(8)}
    with StoreWriter(tmp_path / "1") as writer:
        first = writer.commit(version(1), tensors)
    with StoreWriter(tmp_path / "1") as writer:  # another publisher, which shares no file with the first
        second = writer.commit(version(2), tensors)
    for data in (tmp_path / "1").glob("*.data-*"):
        data.write_bytes(b"\1" * data.stat().st_size)
    (found,) = differences(Store(tmp_path / "1"), first, second)
    assert found.kind == "unchanged"


def test_parts_are_compared_one_by_one(tmp_path: Path) -> None:
    before = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    after = before.copy()
    after[4, 1] += 3
    for number, values in ((1, before), (2, after)):
        partitioned.save(tmp_path / f"ckpt-{number}", values, ["0,2:-", "2,4:-"])
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-1"\nall_model_checkpoint_paths: "ckpt-2"\n'
    )
    store = Store(tmp_path)
    (found,) = differences(store, store.find(1), store.find(2))
    assert (found.kind, found.changed, found.norm, found.largest) == ("changed", 1, 3.0, 3.0)
