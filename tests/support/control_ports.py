"""The trainer's control port and a client, over a store whose training is controlled by the test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import tensorflow as tf

from paramsync.publishing.control_port import ControlPort, Training
from paramsync.publishing.publisher import Publisher
from paramsync.v1 import sync_pb2, sync_pb2_grpc
from tests.support.training import ON_REQUEST, Counters

TIMEOUT = 60
STATES = sync_pb2.PublisherStatus


@dataclass(frozen=True)
class Pair:
    """A control port and its client, over one store."""

    store: Path
    control: ControlPort
    channel: grpc.Channel
    stub: Any

    @contextmanager
    def training(self) -> Iterator[Publisher]:
        with Publisher(self.store, Counters(), schedule=ON_REQUEST) as publisher:
            self.control.training_begins(Training(publisher=publisher, device="CPU", steps_per_epoch=10))
            publisher.meter.advance(7, tf.constant(0.5), time.monotonic())
            yield publisher


@contextmanager
def paired(store: Path) -> Iterator[Pair]:
    """A pair on a free port. Training has not begun."""
    with (
        closing(ControlPort("127.0.0.1", 0, store=store)) as control,
        grpc.insecure_channel(control.address) as channel,
    ):
        yield Pair(store, control, channel, sync_pb2_grpc.PublisherStub(channel))


def status(pair: Pair) -> sync_pb2.PublisherStatus:
    answer = pair.stub.GetStatus(sync_pb2.GetPublisherStatusRequest(), timeout=TIMEOUT)
    assert isinstance(answer, sync_pb2.PublisherStatus)
    return answer
