"""The metrics page of a program for Prometheus: the program's own metrics, and metrics of its process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry


class MetricsPage(Collector):
    """Computes the program's metrics at every scrape, on any thread. Has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def describe(self) -> list[Metric]:
        return []  # no names are listed, so that nothing is collected at registration

    @abstractmethod
    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics of the program."""
