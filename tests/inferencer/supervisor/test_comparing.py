"""Comparing two versions for the page: one pair at a time, given up when nobody waits, a bound of time for all."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from inferencer.supervisor.comparing import Comparing
from paramsync.errors import BusyError, RequestError
from paramsync.graphs.capturing import capture
from paramsync.store.commit import StoreWriter
from tests.support.written import version

LONG = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with StoreWriter(tmp_path) as writer:
        for number in (1, 2):
            writer.commit(version(number), {"w": np.full(4, number, np.float32)})
    return tmp_path


def test_parameters_have_the_names_that_people_know(tmp_path: Path) -> None:
    dense = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, name="dense")], name="net")
    graph = capture(dense).graph
    names = [spec.name for spec in graph.parameters]
    lone = "w/.ATTRIBUTES/VARIABLE_VALUE"
    with StoreWriter(tmp_path) as writer:
        writer.add_graph(graph.digest, graph.to_bytes())
        for number in (1, 2):
            values = {
                spec.name: np.full([size or 0 for size in spec.shape or ()], number, np.float32)
                for spec in graph.parameters
            }
            writer.commit(version(number, graph=graph.digest), {**values, lone: np.full(2, number, np.float32)})
    found = json.loads(Comparing().ask(tmp_path, 1, 2).result(LONG))["parameters"]
    assert {one["name"] for one in found} == {*names, lone}
    assert sorted(one["shown"] for one in found) == ["net/dense/bias", "net/dense/kernel", "w"]


def test_what_nobody_waits_for_is_given_up_and_one_pair_is_compared_at_a_time(store: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    def clock() -> float:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert go.wait(LONG)
        return time.monotonic()

    comparing = Comparing(clock=clock)
    for left, expected in (("another", None), ("asker", "whoever asked for it left")):
        begun.clear()
        go.clear()
        answer = comparing.ask(store, 1, 2, "asker")
        assert begun.wait(LONG)
        with pytest.raises(BusyError, match="one pair is at a time"):
            comparing.ask(store, 1, 2, "another")
        comparing.leave(left)
        go.set()
        if expected is None:
            assert json.loads(answer.result(LONG))["kinds"] == {"changed": 1}
        else:
            with pytest.raises(RequestError, match=expected):
                answer.result(LONG)


def test_whoever_asks_again_and_again_gets_a_quarter_of_the_time(store: Path) -> None:
    seconds = [0.0]

    def clock() -> float:
        if threading.current_thread() is not threading.main_thread():
            seconds[0] += 1.0  # each look at it
        return seconds[0]

    comparing = Comparing(seconds=20, clock=clock)
    took, refused = 0.0, set()
    while seconds[0] < 10_000:
        began = seconds[0]
        try:
            comparing.ask(store, 1, 2).result(LONG)
            took += seconds[0] - began
        except BusyError as error:
            refused.add(str(error)[:60])
            seconds[0] += 10.0
    assert refused
    assert took == pytest.approx(2_500, rel=0.1)
