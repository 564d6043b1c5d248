"""How much of a model in training changes from version to version, and how large the delta is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from bench.settings import Settings
from bench.training import MANUAL
from paramsync import dtypes
from paramsync.publishing.publisher import Publisher
from paramsync.remote import tensors
from paramsync.store.store import Store
from paramsync.tensorbundle.index import Entry

_APART = (1, 10, 100)  # steps from version to version
_BATCH = 64
_INPUTS, _WIDTH, _CLASSES = 784, 1024, 10  # 1.9 million parameters
_ROWS, _COLUMNS, _EXPONENT = 200_000, 32, 1.2  # the table's size, and the exponent of its rows' frequencies
_Precision = Literal["bfloat16"] | None
_SHARES: dict[_Precision, float] = {None: 1.0, "bfloat16": 0.5}  # the size of elements, relative to float32
_Examples = tuple[Any, Any]
_Published = tuple[Mapping[str, Entry], Mapping[str, Any]]


def run(given: Settings, folder: Path) -> dict[str, Any]:
    """Train models, publish them with each precision, and make the deltas that a mirror would make."""
    rows = []
    optimizers = keras.optimizers
    for kind, make, warm_up, optimizer in (
        ("dense, Adam 1e-6", _dense, 300, optimizers.Adam(1e-6)),
        ("dense, Adam 1e-5", _dense, 300, optimizers.Adam(1e-5)),
        ("dense, Adam 1e-3", _dense, 300, optimizers.Adam(1e-3)),
        ("dense, SGD 1e-2", _dense, 300, optimizers.SGD(1e-2)),
        ("recommender, Adagrad 1e-2", _recommender, 100, optimizers.Adagrad(1e-2)),
        ("recommender, Adam 1e-3", _recommender, 100, optimizers.Adam(1e-3)),
    ):
        keras.utils.set_random_seed(0)
        model, loss, examples = make(given.bytes, np.random.default_rng(0))
        model.compile(optimizer, loss)
        rows += [{"training": kind, **row} for row in _measure(model, examples, warm_up, folder / kind)]
    return {"rows": {"bytes": rows}}


def _measure(model: keras.Model, examples: _Examples, warm_up: int, folder: Path) -> list[dict[str, Any]]:
    (x, y), chance = examples, np.random.default_rng(1)

    def train(steps: int) -> None:
        for _ in range(steps):
            batch = chance.integers(0, len(x), _BATCH)
            model.train_on_batch(x[batch], y[batch])

    def publish(precision: _Precision) -> _Published:
        version = publishers[precision].publish(int(model.optimizer.iterations), wait=True)
        bundle = Store(folder / str(precision)).open(version)
        contents, entries = tensors.contents(bundle), bundle.entries
        floats = [name for name in contents if dtypes.to_numpy(entries[name].dtype) == np.float32]
        return entries, {name: contents[name].copy() for name in floats}

    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        train(warm_up)
        publishers = {
            precision: stack.enter_context(
                Publisher(folder / str(precision), model, schedule=MANUAL, on_error="raise", precision=precision)
            )
            for precision in _SHARES
        }
        versions = {precision: publish(precision) for precision in _SHARES}
        for apart in _APART:
            train(apart)
            rows.append({"steps": apart})
            for precision, share in _SHARES.items():
                before, versions[precision] = versions[precision], publish(precision)
                changed, sent = _compare(before, versions[precision])
                name = precision or "float32"
                rows[-1] |= {f"{name} changed %": changed, f"{name} sent %": sent / share}
    return rows


def _compare(before: _Published, after: _Published) -> tuple[float, float]:
    """Return the percentage of elements that changed, and the size of the delta as a percentage of the bytes."""
    (entries, old), (_, new) = before, after
    size = sum(map(len, new.values()))
    changed = sum(np.count_nonzero(old[name].view("u4") != new[name].view("u4")) for name in new)
    sent = sum(len(content) for _, content in tensors.difference(entries, old, new))
    return 400 * changed / size, 100 * sent / size


def _dense(size: int, chance: np.random.Generator) -> tuple[keras.Model, keras.losses.Loss, _Examples]:
    """Return a classifier of at most `size` bytes, which learns a linear function."""
    width = min(_WIDTH, size // 4 // (_INPUTS + _WIDTH))
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((_INPUTS,)), *[layers.Dense(width, "relu") for _ in range(2)], layers.Dense(_CLASSES)]
    )
    x = chance.random((4000, _INPUTS), np.float32)
    y = (x @ chance.standard_normal((_INPUTS, _CLASSES), np.float32)).argmax(1)
    return model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), (x, y)


def _recommender(size: int, chance: np.random.Generator) -> tuple[keras.Model, keras.losses.Loss, _Examples]:
    """Return a recommender of at most `size` bytes: a table with few rows that are looked up often, and a network."""
    rows = min(_ROWS, size // 4 // _COLUMNS)
    layers = keras.layers
    pair = keras.Input((2,), dtype="int32")
    looked_up = layers.Flatten()(layers.Embedding(rows, _COLUMNS)(pair))
    model = keras.Model(pair, layers.Dense(1)(layers.Dense(64, activation="relu")(looked_up)))
    x = (chance.zipf(_EXPONENT, (20_000, 2)) % rows).astype(np.int32)
    y = chance.integers(0, 2, len(x)).astype(np.float32)
    return model, keras.losses.BinaryCrossentropy(from_logits=True), (x, y)
