"""A model that computes for ever holds up neither other models nor anything else that the server answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paramsync.v1 import sync_pb2 as pb
from tests.support.programs import eventually
from tests.support.published import Gated, Publisher, proven
from tests.support.running import LONG, SERVING, LocalRunning, request, seen


@pytest.mark.parametrize("rows", [1, 1000], ids=["small", "large"])
def test_while_one_model_computes_for_ever_another_answers(tmp_path: Path, gate: Path, rows: int) -> None:
    stores = [tmp_path / "slow", tmp_path / "m"]
    publishers = [Publisher(one) for one in stores]
    running = LocalRunning(*stores)
    publishers[0].publish(5, kind=Gated)
    publishers[1].publish(7)
    for one in stores:
        list(running.sync.Sync(pb.SyncRequest(model=one.name), timeout=LONG))
    called = tmp_path / "called"
    endless = request("slow", x=np.ones([rows, 2], np.float32), called=str(called), gate=str(gate))
    waiting = [running.prediction_service.Predict.future(endless, timeout=LONG)]
    eventually(called.exists, lambda: "the first call")  # calls that wait for a connection come in any order
    waiting += [running.prediction_service.Predict.future(endless, timeout=LONG) for _ in range(29)]
    eventually(lambda: running.server.predicting.batcher.held == 30, lambda: "all to be there")
    for _ in range(30):
        answer = running.prediction_service.Predict(request("m"), timeout=LONG)
        assert proven(seen(answer), 7)
    assert running.health("m") == SERVING
    waiting[29].cancel()
    eventually(lambda: running.server.predicting.batcher.held == 29, lambda: "the one that left")
    gate.touch()
    assert all(proven(seen(one.result()), 5) for one in waiting[:29])
    running.drain()
    running.close()
    for publisher in publishers:
        publisher.close()
