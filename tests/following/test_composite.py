"""Connection: each answer comes from exactly one version of each model, whichever model swaps meanwhile."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import NotServingError, UnknownLabelError, UnknownVersionError
from paramsync.following.composite import Connection
from paramsync.following.follower import Follower
from paramsync.following.replica import Replica
from paramsync.graphs.capturing import capture
from paramsync.inference.resident import Resident
from paramsync.status import State
from paramsync.version import Version
from tests.support.stores import Scaled

X = np.random.default_rng(7).standard_normal((5, 6)).astype(np.float32)
ROWS = np.ones([1, 6], np.float32)


class Parts:
    """An encoder and a head that multiply by their version's number, joined: the product tells both versions."""

    def __init__(self, path: Path, **told: Any) -> None:
        self.replicas = (Replica("encoder", path / "encoder"), Replica("head", path / "head"))
        self.connection = Connection("both", *self.replicas, told.pop("inputs", {"x": "y"}), **told)
        self._graph = capture(Scaled()).graph

    def restored(self, number: float, graph: Any = None) -> Resident:
        """A version in memory, for either part."""
        version = Version(number=int(number), step=1, prefix="ckpt", step_done_at=1.0, snapshot_at=1.0)
        graph = graph or self._graph
        return Resident(version, graph, tuple(tf.fill(one.shape, float(number)) for one in graph.parameters))

    def swap(self, part: int, number: int, graph: Any = None) -> None:
        self.replicas[part].swap(self.restored(number, graph))

    def ask(self, version: int | None = None, label: str = "") -> tuple[float, list[int]]:
        """The answer, and the versions of both parts that it comes from."""
        one = self.connection.take(version, label)
        answer = one.predict({"x": ROWS})["y"].numpy()[0, 0]
        return float(answer), [number.number for _, number in one.parts]


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_it_computes_what_the_head_computes_from_the_encoders_answer(tmp_path: Path) -> None:
    inputs = keras.Input((6,), name="image")
    encoder = keras.Model(inputs, {"features": keras.layers.Dense(4, "relu")(inputs)})
    features, scale = keras.Input((4,), name="embedding"), keras.Input((1,), name="scale")
    head = keras.Model([features, scale], {"y": keras.layers.Dense(3)(features) * scale})
    encoder.export(str(tmp_path / "encoder" / "3"), verbose=False)
    head.export(str(tmp_path / "head" / "8"), verbose=False)
    replicas = [Replica(name, tmp_path / name) for name in ("encoder", "head")]
    connection = Connection("both", replicas[0], replicas[1], {"embedding": "features"}, outputs=["features"])
    for replica in replicas:
        Follower(replica).run_once()
    one = connection.take()
    scaling = np.full((5, 1), 0.3, np.float32)
    found = one.predict({"image": X, "scale": scaling})
    by_hand = replicas[0].serving().predict({"image": X})["features"]
    expected = replicas[1].serving().predict({"embedding": by_hand, "scale": scaling})["y"]
    assert found["y"].numpy().tobytes() == expected.numpy().tobytes()
    assert found["features"].numpy().tobytes() == by_hand.numpy().tobytes()
    assert (one.version.number, [(name, version.number) for name, version in one.parts]) == (
        8,
        [("encoder", 3), ("head", 8)],
    )
    assert connection.status().parts == one.parts
    shared = {id(tensor) for replica in replicas for tensor in replica.serving().parameters}
    assert {id(tensor) for tensor in one.parameters} == shared


def test_a_part_without_a_version_is_named(parts: Parts) -> None:
    with pytest.raises(NotServingError, match=r"part 'encoder' has no version yet.*, part 'head' has no version yet"):
        parts.ask()
    assert parts.connection.status().state is State.WAITING
    parts.swap(0, 1)
    with pytest.raises(NotServingError, match=r"model 'both' is not serving: part 'head' has no version yet"):
        parts.ask()
    assert parts.connection.residents == ()
    parts.swap(1, 2)
    assert parts.ask() == (2.0, [1, 2])
    assert parts.connection.status().state is State.SERVING


def test_requests_may_name_a_version_or_a_label_of_the_last_part(parts: Parts) -> None:
    parts.swap(0, 2)
    for number in (3, 4):
        parts.swap(1, number)
    assert parts.ask(3) == (6.0, [2, 3])
    parts.replicas[1].arrange(labels={"canary": parts.restored(9)})
    assert parts.ask(label="canary") == (18.0, [2, 9])
    assert [one.version.number for one in parts.connection.residents] == [4, 3, 9]
    with pytest.raises(UnknownVersionError, match="there are: 3, 4, 9"):
        parts.ask(5)
    with pytest.raises(UnknownLabelError):
        parts.ask(label="stable")


def other_graph(name: str = "z") -> Any:
    """A graph with another output, which does not fit the head's input."""
    scaled = Scaled()
    traced = tf.function(lambda x: {name: scaled(x)["y"]}, [tf.TensorSpec([None, 6], tf.float32, name="x")])
    return capture(scaled, signatures={"serving_default": traced}).graph


def test_graphs_that_do_not_fit_are_reported_until_they_do_and_the_last_pair_goes_on(parts: Parts) -> None:
    parts.swap(0, 2)
    parts.swap(1, 3)
    parts.swap(0, 4, other_graph())
    assert parts.replicas[0].serving().version.number == 4
    assert parts.ask() == (6.0, [2, 3])
    problem = "outputs of encoder: expected some of z, found y"
    assert parts.connection.reason == parts.connection.status().reason == problem
    parts.swap(1, 5)
    assert parts.ask() == (6.0, [2, 3])
    assert parts.connection.reason == problem
    parts.swap(0, 6)
    assert parts.ask() == (30.0, [6, 5])
    assert parts.connection.reason == ""


def test_two_parts_that_swap_at_the_same_time_end_as_the_pair_of_both(parts: Parts) -> None:
    parts.swap(0, 1)
    parts.swap(1, 1)
    both_prepared = threading.Barrier(2)

    def wait(_: Resident) -> Callable[[], None]:
        both_prepared.wait(300)  # each was prepared to be joined with what the other is about to leave
        return lambda: None

    for replica in parts.replicas:
        replica.on_swap(wait)
    threads = [threading.Thread(target=parts.swap, args=(part, 10 + part)) for part in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parts.ask() == (110.0, [10, 11])


def test_one_that_is_closed_is_joined_no_more_and_may_go(parts: Parts) -> None:
    parts.swap(0, 1)
    parts.swap(1, 1)
    parts.connection.close()
    parts.swap(0, 2)
    assert parts.ask()[1] == [1, 1]
    gone = weakref.ref(parts.connection)
    del parts.connection
    gc.collect()
    assert gone() is None
