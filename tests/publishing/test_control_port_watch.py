"""Those who watch the trainer's control port: what they are told, how many there are, and how it ends."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from paramsync.publishing import control_port
from paramsync.publishing.control_port import ControlPort
from paramsync.v1 import sync_pb2, sync_pb2_grpc
from tests.support.control_ports import STATES, TIMEOUT, Pair, status
from tests.support.written import version


def watch(pair: Pair) -> Any:
    call = pair.stub.Watch(sync_pb2.WatchPublisherRequest(), timeout=TIMEOUT)
    call.initial_metadata()  # arrives when nothing is missed any more
    return call


def test_watch_tells_of_every_version_from_now_on(pair: Pair) -> None:
    with pair.training() as publisher:
        publisher.publish(1, wait=True)
        call = watch(pair)
        numbers = [publisher.publish(step, wait=True).number for step in (2, 3, 4)]
        assert [next(call).number for _ in numbers] == numbers


def test_there_are_only_so_many_watchers_and_status_is_answered_beside_them(pair: Pair) -> None:
    calls = [watch(pair) for _ in range(control_port.MOST_WATCHING)]
    with pytest.raises(grpc.RpcError) as refused:
        next(pair.stub.Watch(sync_pb2.WatchPublisherRequest(), timeout=TIMEOUT))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status(pair).state == STATES.STARTING
    calls[0].cancel()
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:  # the server hears of it in its own time
        if not is_refused(pair):
            return
    pytest.fail("a watcher left, and its place was not given to another")


def is_refused(pair: Pair) -> bool:
    call = pair.stub.Watch(sync_pb2.WatchPublisherRequest(), timeout=TIMEOUT)
    call.initial_metadata()
    if call.is_active():
        call.cancel()
        return False
    return True


def test_a_watcher_that_does_not_read_is_dropped_and_told_so() -> None:
    all_of_them = control_port.Watchers()
    slow = all_of_them.add()
    assert slow is not None
    for number in range(control_port.MOST_UNREAD + 10):
        all_of_them.tell(version(number))
    read = []
    while (one := slow.next()) is not None:
        read.append(one.number)
    assert read == list(range(control_port.MOST_UNREAD))
    assert slow.fell_behind


def test_watches_end_when_the_port_is_closed(tmp_path: Path) -> None:
    control = ControlPort("127.0.0.1", 0, store=tmp_path)
    with grpc.insecure_channel(control.address) as channel, ThreadPoolExecutor() as pool:
        call = sync_pb2_grpc.PublisherStub(channel).Watch(sync_pb2.WatchPublisherRequest(), timeout=TIMEOUT)
        call.initial_metadata()
        heard = pool.submit(list, call)
        control.close()
        assert heard.result(TIMEOUT) == []
        assert call.code() is grpc.StatusCode.OK
