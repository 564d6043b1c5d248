"""The plan of a checkpoint: a table of cases, and where tensors lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from paramsync.checkpoint.data_file import ALIGNMENT
from paramsync.checkpoint.tensor_bytes import PORTION
from paramsync.checkpoint.writer import LINKED, WritePlan, arrange, decide

MB = 1 << 20


def shard(size: int, *names: str) -> tuple[int, tuple[str, ...]]:
    return size, names


@pytest.mark.parametrize(
    ("sizes", "unchanged", "shards", "expected"),
    [
        pytest.param({"a": 8, "b": 8}, "", [], WritePlan({}, (), ("a", "b")), id="the first"),
        pytest.param({"a": 8, "b": 8}, "", [shard(16, "a", "b")], WritePlan({}, (), ("a", "b")), id="all changed"),
        pytest.param(
            {"a": 8, "b": 8}, "ab", [shard(16, "a", "b")], WritePlan({0: ("a", "b")}, (), ()), id="none changed"
        ),
        pytest.param(
            {"a": 8, "b": 2}, "a", [shard(10, "a", "b")], WritePlan({0: ("a",)}, (), ("b",)), id="mostly frozen"
        ),
        pytest.param({"a": 4, "b": 6}, "a", [shard(10, "a", "b")], WritePlan({}, ("a",), ("b",)), id="mostly trained"),
        pytest.param(
            {"a": 4, "b": 6},
            "a",
            [shard(4, "a"), shard(6, "b")],
            WritePlan({0: ("a",)}, (), ("b",)),
            id="parted, as the plan before made them",
        ),
        pytest.param({"a": 5}, "a", [shard(10, "a")], WritePlan({0: ("a",)}, (), ()), id="half stale"),
        pytest.param({"a": 5}, "a", [shard(11, "a")], WritePlan({}, ("a",), ()), id="more than half stale"),
        pytest.param({"a": 8, "c": 8}, "a", [shard(16, "a", "b")], WritePlan({0: ("a",)}, (), ("c",)), id="a new one"),
        pytest.param(
            {"a": 8}, "a", [shard(8, "a"), shard(8, "b")], WritePlan({0: ("a",)}, (), ()), id="one that is gone"
        ),
        pytest.param(
            {"a": 100, "b": 6300},
            "a",
            [shard(100, "a"), shard(6300, "b")],
            WritePlan({0: ("a",)}, (), ("b",)),
            id="1/64",
        ),
        pytest.param(
            {"a": 99, "b": 6300},
            "a",
            [shard(99, "a"), shard(6300, "b")],
            WritePlan({}, (), ("a", "b")),
            id="below 1/64",
        ),
        pytest.param(
            {"a": MB, "b": 1000 * MB}, "a", [shard(1001 * MB, "a", "b")], WritePlan({}, ("a",), ("b",)), id="a megabyte"
        ),
        pytest.param(
            {"a": 0, "b": 0}, "ab", [shard(0, "a", "b")], WritePlan({}, (), ("a", "b")), id="nothing to share"
        ),
        pytest.param(
            {"a": 0, "b": 8}, "ab", [shard(8, "a", "b")], WritePlan({0: ("a", "b")}, (), ()), id="an empty one"
        ),
        pytest.param({"a": 8}, "a", [shard(8)], WritePlan({}, ("a",), ()), id="a file that a stranger removed"),
        pytest.param({}, "", [], WritePlan({}, (), ()), id="nothing at all"),
    ],
)
def test_what_changed_is_written_and_the_rest_stays_where_that_pays(
    sizes: Mapping[str, int], unchanged: str, shards: Sequence[tuple[int, tuple[str, ...]]], expected: WritePlan
) -> None:
    assert decide(sizes, set(unchanged), shards) == expected


def test_of_too_many_shards_the_smallest_are_put_together() -> None:
    sizes = {f"{at:02d}": at + 10 for at in range(LINKED + 1)}
    plan = decide(sizes, set(sizes), [shard(size, name) for name, size in sizes.items()])
    assert list(plan.linked) == list(range(LINKED // 2 + 1, LINKED + 1))
    assert plan.moved == tuple(sizes)[: LINKED // 2 + 1]
    assert plan.changed == ()


def test_tensors_begin_on_64_bytes_and_large_ones_on_a_page() -> None:
    layout = arrange((3, 4095, 4096, 0, 1))
    assert layout.offsets == (0, 64, 8192, 12288, 12288)
    assert layout.end == 12289


def test_portions_are_all_of_the_bytes_once_and_none_is_longer_than_the_others() -> None:
    sizes = (0, 9 * PORTION + 5, 7, 0, PORTION, 1, 0)
    layout = arrange(sizes)
    covered = [0] * len(sizes)
    for portion in layout.portions:
        assert sum(piece.stop - piece.start for piece in portion) <= PORTION
        for piece in portion:
            assert piece.start == covered[piece.tensor]
            covered[piece.tensor] = piece.stop
    assert tuple(covered) == sizes
    assert arrange(()).portions == ()


def test_no_value_is_cut_in_two() -> None:
    sizes = (3, 2 * PORTION, 65, 3 * PORTION + 8, 1)
    pieces = [piece for portion in arrange(sizes).portions for piece in portion]
    assert len(pieces) > len(sizes)
    assert all(piece.start % ALIGNMENT == 0 for piece in pieces)
