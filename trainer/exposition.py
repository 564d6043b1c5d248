"""Exposition: how training and publishing go, as Prometheus reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from paramsync.program.prometheus import Page

if TYPE_CHECKING:
    from paramsync.publishing.control_port import Training


class Exposition(Page):
    """Reads what there is to say whenever it is asked, on any thread."""

    def __init__(self, training: Callable[[], Training | None], *, clock: Callable[[], float] = time.time) -> None:
        """`training` is what has begun; None before it has."""
        self._training = training
        self._clock = clock
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        training = self._training()
        if training is None:
            return
        meter, state, publishing = training.meter, training.state, training.publisher.status()
        version = publishing.published
        committed = None if version is None else version.committed_at
        since = None if committed is None else max(0.0, self._clock() - committed)
        took = None if version is None or committed is None else committed - version.snapshot_at
        for name, said, value in (
            ("step", "The step that training is at.", meter.step),
            ("steps_per_second", "Over the last second or more.", meter.steps_per_second),
            ("loss", "Of the last step.", meter.loss),
            (
                "published_version",
                "The version published last, by this process.",
                None if version is None else version.number,
            ),
            ("published_step", "The training step of that version.", None if version is None else version.step),
            ("since_publication_seconds", "How long ago that was.", since),
            ("publish_seconds", "What that took, from pinning its values to its commit.", took),
            ("stall_seconds", "How long the last publication held the thread that trains.", meter.stall),
            ("publishing_fails", "1 where the last publication failed.", publishing.last_error is not None),
            ("saved_step", "The step that training would resume at.", None if state is None else state.saved),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"paramsync_trainer_{name}", said, value=float(value))
        for name, said, count in (
            ("publications", "Versions published by this process.", publishing.publishes),
            ("skipped", "Publications that a newer one overtook before they were written.", publishing.skipped),
            ("refused", "Publications refused because of their values.", publishing.refused),
        ):
            yield CounterMetricFamily(f"paramsync_trainer_{name}", said, value=count)
