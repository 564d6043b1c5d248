"""Metrics that must not cost a version."""

from __future__ import annotations

from typing import Any

import pytest

from paramsync.publishing.metrics import Meter
from paramsync.publishing.write_behind import MetricReader


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "\udcff", "x" * 201, 5, None])
def test_one_with_a_name_that_no_record_takes_is_left_out_with_one_warning(
    name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reader = MetricReader()
    for _ in range(2):
        assert reader.read({name: 1.0, "loss": 0.5, "é/ü": 2}) == {"loss": 0.5, "é/ü": 2.0}
    (record,) = caplog.records
    assert "expected a name of at most 200 characters that can be shown" in record.getMessage()
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 400


def test_the_speed_of_a_training_that_goes_on_counts_from_its_first_step() -> None:
    meter = Meter()
    meter.advance(1_000_000, None, 50.0)
    assert meter.steps_per_second == 0
    meter.advance(1_000_020, None, 52.0)
    assert (meter.step, meter.steps_per_second) == (1_000_020, 10.0)
