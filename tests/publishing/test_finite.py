"""Values that are NaN or infinite, wherever they are: no version with them is published where that is not wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from paramsync.checkpoint.tensor_bytes import PORTION
from paramsync.errors import NotFiniteError
from paramsync.rpc.server import of_version
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from paramsync.version import Version


def commit(writer: StoreWriter, tensors: dict[str, Any]) -> Version:
    number = writer.next_number(0)
    version = Version(number=number, step=0, prefix="", step_done_at=0.0, snapshot_at=0.0)
    return writer.commit(version, tensors, finite=True)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, ml_dtypes.bfloat16])
def test_one_value_is_found_at_every_place(tmp_path: Path, dtype: Any) -> None:
    large = np.ones(9 * PORTION // np.dtype(dtype).itemsize + 3, dtype)
    tensors = {"a": np.ones(3, bool), "b": large, "c": np.ones(5, dtype)}
    with StoreWriter(tmp_path, keep=1) as writer:
        good = commit(writer, tensors)
        cuts = [start // large.itemsize for start in range(0, large.nbytes, PORTION)]
        for at in {0, len(large) - 1, *cuts, *(cut - 1 for cut in cuts), *(cut - 64 // large.itemsize for cut in cuts)}:
            for bad in (np.nan, -np.nan, np.inf, -np.inf):
                large[at] = bad
                with pytest.raises(NotFiniteError) as told:
                    commit(writer, tensors)
                assert told.value.names == ("b",)
            large[at] = 1
        assert Store(tmp_path).latest() == good
        assert commit(writer, tensors).number > good.number


def test_large_values_are_finite_though_their_sum_is_not(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        commit(writer, {"large": np.full(1000, np.finfo(np.float32).max)})


@pytest.mark.parametrize(
    "values",
    [
        np.array([-1, np.iinfo(np.int64).max]),
        np.full(9, 0xFF, np.uint8),
        np.array([b"nan", b"inf"], object),
        np.empty((0, 3), np.float32),
        np.full(9, -8, ml_dtypes.int4),
        np.full(9, 6, ml_dtypes.float4_e2m1fn),
        np.full(9, 448, ml_dtypes.float8_e4m3fn),
        np.array(0.0, np.float16),
    ],
)
def test_what_has_no_such_value_is_published(tmp_path: Path, values: Any) -> None:
    with StoreWriter(tmp_path) as writer:
        commit(writer, {"values": values})


def test_a_value_in_a_view_that_is_not_in_one_piece_is_found(tmp_path: Path) -> None:
    square = np.ones((64, 64), np.float32)
    square[3, 7] = np.nan
    with StoreWriter(tmp_path) as writer:
        commit(writer, {"seen": square[::2, ::2]})
        with pytest.raises(NotFiniteError, match="in seen: not published"):
            commit(writer, {"seen": square[1::2, 1::2].T})


def test_five_names_are_told_and_how_many_more() -> None:
    assert "in a, b: not published" in str(NotFiniteError(["a", "b"]))
    assert "in a, b, c, d, e and 2 more: not published" in str(NotFiniteError("abcdefg"))
    assert str(NotFiniteError(["a\x1b[2J\n"])).isprintable()


def test_what_was_not_published_leaves_nothing(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, keep=1) as writer:
        commit(writer, {"one": np.ones(1 << 18)})
        before = {one.name for one in tmp_path.iterdir() if not one.name.startswith(".spare-")}
        with pytest.raises(NotFiniteError):
            commit(writer, {"one": np.full(1 << 18, np.nan)})
        assert {one.name for one in tmp_path.iterdir() if not one.name.startswith(".spare-")} == before


def commit_unseen(writer: StoreWriter, tensors: dict[str, Any]) -> Version:
    number = writer.next_number(0)
    claimed = Version(number=number, step=0, prefix="", step_done_at=0.0, snapshot_at=0.0, finite=True)
    return writer.commit(claimed, tensors)


def test_a_record_says_that_values_are_finite_only_where_all_were_looked_at(tmp_path: Path) -> None:
    frozen = np.ones(1 << 18)
    with StoreWriter(tmp_path, keep=9) as writer:
        made = [
            commit(writer, {"frozen": frozen, "trained": np.zeros(9)}),
            commit(writer, {"frozen": frozen, "trained": np.ones(9)}),  # what did not change was looked at before
            commit_unseen(writer, {"frozen": frozen, "trained": np.zeros(9)}),  # whatever the caller says
            commit(writer, {"frozen": frozen, "trained": np.ones(9)}),
        ]
    assert [one.finite for one in made] == [True, True, False, True]
    assert [one.finite for one in Store(tmp_path).versions()] == [True, True, False, True]
    assert [of_version(one).finite for one in made] == [True, True, False, True]
    assert made[1].bytes_written < frozen.nbytes
    assert made[3].bytes_written > frozen.nbytes  # nobody had looked at what was there
