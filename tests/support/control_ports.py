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
from paramsync.publishing.metrics import Meter
from paramsync.publishing.publisher import Publisher
from paramsync.publishing.schedule import PublishSchedule
from paramsync.v1 import sync_pb2, sync_pb2_grpc

TIMEOUT = 30
STATES = sync_pb2.PublisherStatus


class Doubling(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x * self.by


@dataclass(frozen=True)
class Pair:
    """A control port and its client, over one store."""

    store: Path
    control: ControlPort
    channel: grpc.Channel
    stub: Any

    @contextmanager
    def training(self) -> Iterator[Publisher]:
        schedule = PublishSchedule(at_start=False, at_end=False)
        with Publisher(self.store, Doubling(), schedule=schedule) as publisher:
            meter = Meter(0, time.monotonic())
            self.control.training_begins(
                Training(publisher=publisher, meter=meter, device="CPU", total_steps=None, steps_per_epoch=10)
            )
            meter.advance(7, tf.constant(0.5), time.monotonic())
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
