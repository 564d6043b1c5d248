"""Exposition: all metrics in Prometheus' format, including the followers' statuses and the process's own metrics."""

from __future__ import annotations

import math
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.metrics_core import Metric

from paramsync.host.processes import memory_of
from paramsync.program.process import release
from paramsync.program.prometheus import MetricsPage
from paramsync.remote.bucket_status import stages
from paramsync.status import State, Status
from paramsync.store.store import PublisherState

from .counts import Histogram, Scrubbed
from .metrics import OK, Metrics
from .worker_status import WorkerState, WorkerStatus

__all__ = ["CONTENT_TYPE", "Exposition"]

_ENTRIES = {"rest": "REST"}  # TensorFlow Serving's names of protocols; all other protocols are "GRPC"
_VERSION = ("model", "signature", "version")


def _age(since: float) -> float:
    """Return the seconds that have passed since `since`, a time in seconds since the epoch."""
    return max(0.0, time.time() - since)


# fmt: off
_OF_STATUS: tuple[tuple[str, str, Callable[[Status], Any]], ...] = (
    ("paramsync_served_version", "The version that serves.", lambda now: now.serving and now.serving.number),
    ("paramsync_served_step", "Training step of the version that serves.",
        lambda now: now.serving and now.serving.step),
    ("paramsync_lag_seconds",
        "Time since the first version newer than the serving one was published; 0 while there is none.",
        lambda now: now.lag_seconds),
    ("paramsync_lag_steps", "Training steps from the version that serves to the newest published one.",
        lambda now: now.lag_steps),
    ("paramsync_lag_versions", "Publications since the version that serves.", lambda now: now.lag_versions),
    ("paramsync_since_publication_seconds", "Time since the newest version in the store was published.",
        lambda now: now.since_publication_seconds),
    ("paramsync_serving_age_seconds", "Time since the training step that answers come from.",
        lambda now: now.serving_age_seconds),
    ("paramsync_next_version", "The version in memory that waits for its moment.", lambda now: now.next),
    ("paramsync_swap_skew_seconds", "How long after its moment the version that serves came to serve.",
        lambda now: now.swap_skew_seconds),
    ("paramsync_resident_versions", "Versions in memory that requests may name.", lambda now: len(now.resident)),
    ("paramsync_quarantined_versions", "Versions in quarantine now.", lambda now: len(now.quarantined)),
    ("paramsync_newest_quarantined", "1 where the newest published version is in quarantine, else 0.",
        lambda now: now.newest_quarantined),
    ("paramsync_store_lost", "1 where the store cannot be read, or is empty all at once, else 0.",
        lambda now: now.store_lost),
    ("paramsync_bucket_failing", "1 where versions do not come from the bucket, else 0.",
        lambda now: now.bucket and bool(now.bucket.reason)),
    ("paramsync_bucket_lag_versions", "Versions in the bucket that are still to be fetched.",
        lambda now: now.bucket and now.bucket.behind),
    ("paramsync_bucket_lag_seconds", "Time since the first of them came into the bucket; 0 while there is none.",
        lambda now: now.bucket and _age(now.bucket.waiting_since or math.inf)),
    ("paramsync_bucket_answer_age_seconds", "Time since the bucket last answered.",
        lambda now: now.bucket and now.bucket.answered_at and _age(now.bucket.answered_at)),
    ("paramsync_pinned", "1 where the model is pinned to a version, else 0.", lambda now: now.pinned is not None),
)
# fmt: on
"""Gauges of a model: name, description, value. A gauge whose value is None is left out."""


class Exposition(MetricsPage):
    """Collects the metrics anew for each page. `text` takes a few milliseconds; any thread may call it."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        workers: Sequence[WorkerStatus] = (),
        trouble: str = "",
        scrubbed: Scrubbed | None = None,
        as_tf_serving: bool = False,
    ) -> None:
        """`trouble` says what is wrong with the workers, if anything."""
        self._metrics = metrics
        self._workers = workers
        self._trouble = trouble
        self._scrubbed = scrubbed
        self._as_tf_serving = as_tf_serving
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        yield from self._of_requests()
        yield from self._of_calls()
        yield from self._of_models()
        yield from self._of_buckets()
        yield from self._of_followers()
        yield from self._of_workers()
        yield from self._of_scrub()
        if self._as_tf_serving:
            yield from self._of_requests_as_tf_serving()
        yield InfoMetricFamily("paramsync_build", "Releases that answer, as labels; always 1.", value=_build())

    def _of_requests(self) -> Iterator[Metric]:
        answered = CounterMetricFamily(
            "paramsync_requests", "Requests answered or refused.", labels=(*_VERSION, "protocol", "code")
        )
        seconds = HistogramMetricFamily(
            "paramsync_request_duration_seconds",
            "Time from the arrival of a request to its answer, of requests that were not refused.",
            labels=(*_VERSION, "protocol"),
        )
        for (*common, code), one in list(self._metrics.requests.items()):
            answered.add_metric([*common, code], one.count)
            if code == OK:
                _add(seconds, common, one)
        yield from (answered, seconds)

    def _of_requests_as_tf_serving(self) -> Iterator[Metric]:
        """Use TensorFlow Serving's names, labels and units. Its labels have neither versions nor signatures."""
        counts: Counter[tuple[str, str]] = Counter()
        latencies: dict[tuple[str, str], Histogram] = {}
        for (model, _, _, protocol, code), one in list(self._metrics.requests.items()):
            counts[model, code] += one.count
            if code == OK:
                entry = latencies.setdefault((model, _ENTRIES.get(protocol, "GRPC")), Histogram(one.bounds))
                entry.take_in(one)
        answered = Metric(":tensorflow:serving:request_count", "The total number of requests.", "untyped")
        for (model, code), count in counts.items():
            answered.add_sample(answered.name, {"model_name": model, "status": code}, count)
        taken = HistogramMetricFamily(
            ":tensorflow:serving:request_latency",
            "Distribution of wall time (in microseconds) for requests that were answered.",
            labels=("model_name", "entrypoint"),
        )
        for key, one in latencies.items():
            _add(taken, key, one, scale=1e6)
        yield from (answered, taken)

    def _of_calls(self) -> Iterator[Metric]:
        rows = HistogramMetricFamily("paramsync_batch_rows", "Rows in each call of a model.", labels=_VERSION)
        requests = HistogramMetricFamily(
            "paramsync_batch_requests", "Requests in each call of a model.", labels=_VERSION
        )
        for key, one in list(self._metrics.calls.items()):
            _add(rows, key, one.rows)
            _add(requests, key, one.requests)
        waiting = self._metrics.waiting()
        yield from (rows, requests)
        yield GaugeMetricFamily("paramsync_queue_depth", "Requests that wait for a call.", value=waiting)

    def _of_models(self) -> Iterator[Metric]:
        statuses = self._statuses()
        state = _gauge("paramsync_model_state", "1 for the state that the model is in, 0 for the others.", "state")
        publisher = _gauge(
            "paramsync_publisher_state",
            "1 for what became of the store's last publisher, 0 for the others; absent where the store does not say.",
            "state",
        )
        labels = _gauge("paramsync_label_version", "The version that a label names.", "label", "version")
        for model, status in statuses:
            for possible in State:
                state.add_metric([model, possible.value], possible is status.state)
            if status.publisher is not None:
                for possible_publisher in PublisherState:
                    is_now = possible_publisher is status.publisher.state
                    publisher.add_metric([model, possible_publisher.value], is_now)
            for label, number in sorted(status.labels.items()):
                labels.add_metric([model, label, str(number)], number)
        yield from (state, publisher, labels)
        for name, said, value in _OF_STATUS:
            gauge = _gauge(name, said)
            for model, status in statuses:
                if (now := value(status)) is not None:
                    gauge.add_metric([model], now)
            yield gauge

    def _of_buckets(self) -> Iterator[Metric]:
        received = CounterMetricFamily(
            "paramsync_bucket_received_bytes", "Bytes of versions that came from the bucket.", labels=("model", "way")
        )
        failures = _counter("paramsync_bucket_failures", "Looks at the bucket and transfers that failed.")
        stage = _gauge(
            "paramsync_bucket_stage_duration_seconds",
            "How long the version that came last took in each stage.",
            "stage",
        )
        for model, status in self._statuses():
            if (bucket := status.bucket) is None:
                continue
            received.add_metric([model, "whole"], bucket.whole_bytes)
            received.add_metric([model, "delta"], bucket.delta_bytes)
            failures.add_metric([model], bucket.failures)
            for name, seconds in ({} if bucket.copied is None else stages(bucket.copied)).items():
                stage.add_metric([model, name], seconds)
        yield from (received, failures, stage)

    def _statuses(self) -> list[tuple[str, Status]]:
        models = self._metrics.models
        return [] if models is None else [(one.name, one.status()) for one in models]

    def _of_followers(self) -> Iterator[Metric]:
        restores = _counter("paramsync_restores", "Versions brought into memory.")
        swaps = _counter("paramsync_swaps", "Times that another version came to serve.")
        quarantines = _counter("paramsync_quarantines", "Versions put into quarantine because they cannot be used.")
        restoring = HistogramMetricFamily(
            "paramsync_restore_duration_seconds",
            "Time to bring a version into memory and check it.",
            labels=("model",),
        )
        swapping = HistogramMetricFamily(
            "paramsync_swap_duration_seconds", "Time to have a version in memory serve.", labels=("model",)
        )
        for one in self._metrics.followed():
            status = one.follower.status()
            restores.add_metric([status.model], status.restores)
            swaps.add_metric([status.model], status.swaps)
            quarantines.add_metric([status.model], status.quarantines)
            _add(restoring, [status.model], one.restores)
            _add(swapping, [status.model], one.swaps)
        yield from (restores, swaps, quarantines, restoring, swapping)

    def _of_scrub(self) -> Iterator[Metric]:
        if (scrubbed := self._scrubbed) is None:
            return
        yield CounterMetricFamily(
            "paramsync_scrubbed_bytes",
            "Bytes of versions in memory that were compared with their checksums again.",
            value=scrubbed.bytes,
        )
        if scrubbed.at is not None:
            yield GaugeMetricFamily(
                "paramsync_scrubbed_timestamp_seconds",
                "When all that was in memory had been compared with its checksums again.",
                value=scrubbed.at,
            )

    def _of_workers(self) -> Iterator[Metric]:
        if not self._workers:
            return
        labels = ("worker",)
        up = GaugeMetricFamily("paramsync_worker_up", "1 where the worker answers, else 0.", labels=labels)
        memory = GaugeMetricFamily(
            "paramsync_worker_resident_memory_bytes", "Memory of the worker, shared pages included.", labels=labels
        )
        private = GaugeMetricFamily(
            "paramsync_worker_private_memory_bytes", "Memory of the worker that is in no file.", labels=labels
        )
        restarts = CounterMetricFamily(
            "paramsync_worker_restarts",
            "Times that the worker ended by itself, and another was started.",
            labels=labels,
        )
        # While a worker is replaced, two processes have the same number.
        for number in dict.fromkeys(worker.number for worker in self._workers):
            these = [worker for worker in self._workers if worker.number == number]
            taken = [memory_of(worker.pid) for worker in these if worker.pid is not None]
            label = [str(number)]
            up.add_metric(label, any(worker.state is WorkerState.ANSWERING for worker in these))
            restarts.add_metric(label, max(worker.restarts for worker in these))
            if taken:
                memory.add_metric(label, sum(one.resident for one in taken))
                private.add_metric(label, sum(one.private for one in taken))
        yield from (up, memory, private, restarts)
        yield GaugeMetricFamily(
            "paramsync_workers_failing",
            "1 while a worker ends again and again, else 0.",
            value=bool(self._trouble),
        )


def _gauge(name: str, said: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, said, labels=("model", *labels))


def _counter(name: str, said: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, said, labels=("model",))


def _add(family: HistogramMetricFamily, labels: Sequence[str], one: Histogram, *, scale: float = 1) -> None:
    total, buckets = 0, []
    for bound, count in zip((*(str(bound * scale) for bound in one.bounds), "+Inf"), one.buckets, strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric(labels, buckets, one.sum * scale)


@cache
def _build() -> dict[str, str]:
    return {
        "version": release(),
        "tensorflow": release("tensorflow"),
        "python": platform.python_version(),
    }
