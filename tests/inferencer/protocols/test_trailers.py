"""Which version answered, and how old it was, in the trailing metadata of every answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferencer.transport.trailers import trailers
from tests.support.published import Publisher
from tests.support.questions import resident
from tests.support.running import LONG, Running, request, synced
from tests.support.written import version

NOW = 1000.0


def test_an_answer_names_its_version_and_its_age_in_whole_milliseconds() -> None:
    one = replace(resident(420), version=replace(version(420), step_done_at=998.7655))
    assert trailers(one, NOW) == (("paramsync-version", "420"), ("paramsync-age-ms", "1234"))


@pytest.mark.parametrize(("committed", "expected"), [(999.0, (("paramsync-age-ms", "1000"),)), (None, ())])
def test_the_age_counts_from_when_it_was_visible_where_nobody_knows_more(
    committed: float | None, expected: tuple[tuple[str, str], ...]
) -> None:
    one = replace(resident(7), version=replace(version(7), step_done_at=0.0, committed_at=committed))
    assert trailers(one, NOW) == (("paramsync-version", "7"), *expected)


def test_a_version_from_the_future_is_of_no_age() -> None:
    one = replace(resident(7), version=replace(version(7), step_done_at=NOW + 5))
    assert dict(trailers(one, NOW))["paramsync-age-ms"] == "0"


def test_of_a_connection_every_part_is_named_and_the_oldest_counts() -> None:
    parts = (("encoder", replace(version(420), step_done_at=990.0)), ("head", replace(version(77), step_done_at=999.0)))
    assert trailers(replace(resident(77), parts=parts), NOW) == (
        ("paramsync-version", "encoder=420,head=77"),
        ("paramsync-age-ms", "10000"),
    )


def test_clients_get_them_over_grpc(served: Running, publisher: Publisher) -> None:
    for number in (8, 9):
        publisher.publish(number)
        synced(served)
        _, call = served.prediction_service.Predict.with_call(request(), timeout=LONG)
        found = dict(call.trailing_metadata())
        assert found["paramsync-version"] == str(number)
        assert 0 <= int(found["paramsync-age-ms"]) < LONG * 1000
