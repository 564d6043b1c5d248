"""The digits job draws digits, reads mnist.npz, and learns."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramsync.errors import SettingsError
from trainer.jobs import digits, examples, glyphs
from trainer.jobs.examples import Examples

RANDOM = np.random.default_rng(0)
MNIST: dict[str, Any] = {
    "x_train": RANDOM.integers(0, 256, (20, 28, 28)).astype(np.uint8),
    "y_train": np.arange(20, dtype=np.uint8) % 10,
    "x_test": RANDOM.integers(0, 256, (10, 28, 28)).astype(np.uint8),
    "y_test": np.arange(10, dtype=np.uint8),
}


def spoiled(path: Path) -> None:
    np.savez_compressed(path, **MNIST)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def accuracy(model: Any, held_out: Examples) -> float:
    return float(np.mean(np.argmax(model(held_out.scaled()), axis=1) == held_out.labels))


def test_glyphs_are_grey_pictures_of_all_ten_digits_no_two_alike_and_follow_from_the_seed() -> None:
    images, labels = glyphs.draw(1001, seed=3)
    assert (images.shape, images.dtype, labels.dtype) == ((1001, 784), np.dtype(np.float32), np.dtype(np.int64))
    assert 0 <= images.min() <= images.max() <= 1
    assert np.bincount(labels).min() > 60
    assert len(np.unique(images, axis=0)) == 1001
    again, labels_again = glyphs.draw(1001, seed=3)
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(labels, labels_again)
    assert (images != glyphs.draw(1001, seed=4)[0]).any()


def test_the_network_learns_to_read_and_does_not_do_so_at_once() -> None:
    learnt, held_out = examples.drawn(seed=0)
    job = digits.build(learnt, seed=0)
    seen = [accuracy(job.model, held_out)]
    for _ in range(3):
        for _ in range(150):
            loss = job.train_step()
        seen.append(accuracy(job.model, held_out))
    assert 0.02 < seen[0] < 0.25
    assert seen == sorted(seen)
    assert 0.3 < seen[-1] < 0.95
    assert float(loss) < 2.3
    assert int(job.step) == 450
    assert job.steps_per_epoch == 625


def test_training_repeats_itself_from_a_seed() -> None:
    learnt, _ = examples.drawn(seed=0)
    jobs = [digits.build(learnt, seed=5) for _ in range(2)]
    first, second = ([float(job.train_step()) for _ in range(5)] for job in jobs)
    assert first == second
    model = jobs[0].model
    assert [(tensor.name, tuple(tensor.shape)) for tensor in model.inputs] == [("image", (None, 784))]
    assert (model.layers[-1].name, tuple(model.outputs[0].shape)) == ("logits", (None, 10))


def test_an_mnist_file_is_read_as_it_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", **MNIST)
    learnt, held_out = examples.read(tmp_path / "mnist.npz")
    np.testing.assert_array_equal(learnt.images, MNIST["x_train"].reshape(20, 784))
    assert learnt.labels.dtype == np.int64
    assert held_out.scaled().dtype == np.float32
    assert held_out.scaled().max() <= 1
    np.testing.assert_array_equal(held_out.labels, MNIST["y_test"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y_test": None}, "expected the arrays x_train, y_train, x_test, y_test, found x_train, y_train, x_test"),
        ({"x_train": np.zeros((20, 27, 28), np.uint8)}, r"x_train: expected uint8 \[n, 28, 28\], found uint8 \[20, 27"),
        ({"x_test": np.zeros((10, 28, 28))}, r"x_test: expected uint8 \[n, 28, 28\], found float64 \[10, 28, 28\]"),
        ({"y_train": np.zeros(19, np.int64)}, r"y_train: expected whole numbers \[20\], found int64 \[19\]"),
        ({"y_test": np.arange(10) + 1}, "y_test: expected digits from 0 to 9, found 1 to 10"),
        ({"x_test": np.array([None])}, "cannot be read as an .npz file: Object arrays"),
    ],
)
def test_a_file_that_is_not_mnist_is_refused_with_what_is_wrong(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    path = tmp_path / "mnist.npz"
    np.savez(path, **{key: value for key, value in (MNIST | changed).items() if value is not None})
    with pytest.raises(SettingsError, match=message):
        examples.read(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        lambda path: path.mkdir(),
        spoiled,
        os.mkfifo,
    ],
    ids=["missing", "directory", "spoiled", "fifo"],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "mnist.npz"
    make(path)
    with pytest.raises(SettingsError) as refused:
        examples.read(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_held_out_examples_are_written_whole_and_leave_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "held-out.npz"
    examples_held_out = Examples(MNIST["x_test"].reshape(10, 784), MNIST["y_test"].astype(np.int64))
    examples_held_out.save(path)
    examples_held_out.save(path)
    with np.load(path) as file:
        assert (file["x"].dtype, file["x"].shape) == (np.float32, (10, 784))
        assert (file["y"].dtype, file["y"].tolist()) == (np.int64, list(range(10)))
    assert list(path.parent.iterdir()) == [path]
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="held-out examples cannot be written to"):
        examples_held_out.save(tmp_path / "file" / "x.npz")
