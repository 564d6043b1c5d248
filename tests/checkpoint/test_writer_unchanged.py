"""What did not change since the checkpoint before is not written again: files are shared, and few."""

from __future__ import annotations

import numpy as np
import pytest

from paramsync.checkpoint.writer import LINKED
from paramsync.dtypes import Array
from tests.support.arrays import any_bits
from tests.support.rewritten import LARGE, Checkpoints


def frozen_and_trained(value: float) -> dict[str, Array]:
    return {
        "frozen": any_bits("float64", (3000,)),
        "more": any_bits("float32", (10, 10)),
        "trained": np.full(700, value),
        "step": np.array(value),
    }


TRAINED = 701 * 8


@pytest.mark.parametrize("told", [True, False])
def test_what_did_not_change_is_not_written_again(checkpoints: Checkpoints, told: bool) -> None:
    unchanged = {"frozen", "more"} if told else set()
    first = checkpoints.write(frozen_and_trained(1), unchanged)  # what is told of no checkpoint is not believed
    assert first.bytes_written == first.bytes
    assert not first.unchanged
    for value in (2, 3, 4):
        written = checkpoints.write(frozen_and_trained(value), unchanged)
        assert (written.bytes, written.bytes_written) == (first.bytes, TRAINED)
        assert written.unchanged == {"frozen", "more"}
    inodes = [(checkpoints.path / checkpoints.files(number)[0]).stat().st_ino for number in (1, 2, 3, 4)]
    assert len(set(inodes)) == 1
    assert [len(checkpoints.files(number)) for number in (1, 2, 3, 4)] == [1, 2, 2, 2]


def test_a_checkpoint_of_which_nothing_changed_takes_no_space(checkpoints: Checkpoints) -> None:
    first = checkpoints.write(frozen_and_trained(1))
    second = checkpoints.write(frozen_and_trained(1))
    assert (second.bytes, second.bytes_written) == (first.bytes, 0)
    assert first.checksum() == second.checksum()
    assert checkpoints.files(2) == ["ckpt-2.data-00000-of-00001"]


def test_the_digest_is_that_of_the_values_wherever_they_lie(checkpoints: Checkpoints) -> None:
    digests = [checkpoints.write(frozen_and_trained(value)).checksum() for value in (1, 2, 1)]
    assert digests[0] == digests[2] != digests[1]
    assert len(digests[0]) == 32
    assert (
        checkpoints.write({"a": np.zeros((2, 3))}).checksum() != checkpoints.write({"a": np.zeros((3, 2))}).checksum()
    )


def test_layers_may_be_frozen_and_trained_again_on_the_way(checkpoints: Checkpoints) -> None:
    layers = [f"layer_{at}" for at in range(6)]
    values = dict.fromkeys(layers, 0.0)
    for at, training in enumerate(
        [range(6), range(3, 6), range(5, 6), range(2), range(6), range(1, 6), range(0, 6, 2)]
    ):
        for layer in training:
            values[layers[layer]] += 1
        tensors = {layer: np.full(2000 + 500 * number, values[layer]) for number, layer in enumerate(layers)}
        written = checkpoints.write(tensors)
        trained = sum(tensors[layers[layer]].nbytes for layer in training)
        assert at == 0 or trained <= written.bytes_written
        assert at == 0 or written.unchanged == {*layers} - {layers[layer] for layer in training}


def test_a_model_frozen_layer_by_layer_shares_few_files_and_writes_little(checkpoints: Checkpoints) -> None:
    layers = [f"layer_{at:02d}" for at in range(30)]
    written = 0
    for at in range(30):
        tensors = {layer: np.full(1000, min(at, number)) for number, layer in enumerate(layers)}
        written += checkpoints.write(tensors).bytes_written
        assert len(checkpoints.files(at + 1)) <= LINKED + 2
    assert written < 0.7 * 30 * 30 * 8000


@pytest.mark.parametrize(
    "tensor", [np.zeros(3000, np.float32), np.zeros((2, 3000)), np.zeros(2999), np.zeros(3000, np.int64)]
)
def test_what_has_another_shape_or_dtype_did_change_whatever_the_caller_says(
    checkpoints: Checkpoints, tensor: Array
) -> None:
    checkpoints.write({"a": np.zeros(3000), "b": np.zeros(1)})
    assert checkpoints.write({"a": tensor, "b": np.zeros(1)}, {"a", "b", "c"}).unchanged == {"b"}


@pytest.mark.parametrize("at", [0, 511, 512, 100_000, LARGE - 1])
def test_a_change_anywhere_is_found(checkpoints: Checkpoints, at: int) -> None:
    tensors = {"a": np.zeros(LARGE, np.float32), "b": np.zeros(LARGE, np.float32)}
    checkpoints.write(tensors)
    tensors["b"][at] = -0.0  # equal as a number, not as bytes
    assert checkpoints.write(tensors).unchanged == {"a"}


def test_a_checkpoint_that_fails_changes_nothing_for_the_next(checkpoints: Checkpoints) -> None:
    checkpoints.write(frozen_and_trained(1))
    (checkpoints.path / ".tmp-ckpt-2.index").mkdir()
    with pytest.raises(IsADirectoryError):
        checkpoints.write(frozen_and_trained(2))
    assert checkpoints.files(2) == []
    (checkpoints.path / ".tmp-ckpt-2.index").rmdir()
    assert checkpoints.write(frozen_and_trained(3)).bytes_written == TRAINED


@pytest.mark.parametrize("told", [True, False])
def test_a_file_that_a_stranger_removed_is_written_again(checkpoints: Checkpoints, told: bool) -> None:
    unchanged = {"frozen", "more"} if told else set()
    checkpoints.write(frozen_and_trained(1))
    checkpoints.write(frozen_and_trained(2), unchanged)
    for file in checkpoints.path.iterdir():
        file.unlink()
    checkpoints.spares.trim()
    written = checkpoints.write(frozen_and_trained(3), unchanged)
    assert written.bytes_written == written.bytes
    assert checkpoints.write(frozen_and_trained(4), unchanged).bytes_written == TRAINED


def test_what_a_stranger_left_under_the_name_of_a_shared_file_gives_way(checkpoints: Checkpoints) -> None:
    checkpoints.write(frozen_and_trained(1))
    (checkpoints.path / "ckpt-2.data-00000-of-00002").write_bytes(b"rubbish")
    assert checkpoints.write(frozen_and_trained(2)).bytes_written == TRAINED
