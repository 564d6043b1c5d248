"""More calls at once than are answered: each is refused by name, or answered from the version that it names."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.support.http import call
from tests.support.in_process import InProcess
from tests.support.programs import eventually
from tests.support.published import Gated, Publisher, proven
from tests.support.running import LONG, SERVING, request, seen

Code = grpc.StatusCode


def test_beyond_the_queue_both_protocols_refuse_at_once_and_others_are_answered(tmp_path: Path, gate: Path) -> None:
    running, publisher = InProcess(tmp_path / "m", queue=8), Publisher(tmp_path / "m")
    running.restore(publisher.publish(5, kind=Gated))
    called = tmp_path / "called"
    endless = request(called=str(called), gate=str(gate), x=np.ones([1, 2], np.float32))
    waiting = [running.prediction_service.Predict.future(endless, timeout=LONG) for _ in range(8)]
    eventually(lambda: running.server.batcher.held == 8, lambda: "the queue to be full")
    for _ in range(20):
        with pytest.raises(grpc.RpcError, match="8 requests are waiting or being answered already") as raised:
            running.prediction_service.Predict(endless, timeout=LONG)
        assert raised.value.code() is Code.RESOURCE_EXHAUSTED
        inputs = {"x": [[1.0, 1.0]], "called": str(called), "gate": str(gate)}
        got = call(running.rest_port, "POST", "/v1/models/m:predict", {"inputs": inputs})
        assert (got.status, "8 requests are waiting" in got.error) == (429, True)
    assert call(running.rest_port, "GET", "/v1/models/m").status == 200
    gate.touch()
    assert all(seen(one.result()) == [5.0] * 6 for one in waiting)
    assert seen(running.prediction_service.Predict(endless, timeout=LONG)) == [5.0] * 6
    running.drain()
    running.close()
    publisher.close()


@pytest.mark.parametrize("rows", [1, 1000], ids=["small", "large"])
def test_while_one_model_computes_for_ever_another_answers(tmp_path: Path, gate: Path, rows: int) -> None:
    stores = [tmp_path / "slow", tmp_path / "m"]
    publishers = [Publisher(one) for one in stores]
    running = InProcess(*stores)
    running.restore(publishers[0].publish(5, kind=Gated), "slow")
    running.restore(publishers[1].publish(7))
    called = tmp_path / "called"
    endless = request("slow", x=np.ones([rows, 2], np.float32), called=str(called), gate=str(gate))
    waiting = [running.prediction_service.Predict.future(endless, timeout=LONG)]
    eventually(called.exists, lambda: "the first call")  # calls that wait for a connection come in any order
    waiting += [running.prediction_service.Predict.future(endless, timeout=LONG) for _ in range(29)]
    eventually(lambda: running.server.batcher.held == 30, lambda: "all to be there")
    for _ in range(30):
        answer = running.prediction_service.Predict(request("m"), timeout=LONG)
        assert proven(seen(answer), 7)
    assert running.health("m") == SERVING
    waiting[29].cancel()
    eventually(lambda: running.server.batcher.held == 29, lambda: "the one that left")
    gate.touch()
    assert all(proven(seen(one.result()), 5) for one in waiting[:29])
    running.drain()
    running.close()
    for publisher in publishers:
        publisher.close()
