"""What the page shows of the past: what became of each version, bounded, and what each version answers."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferencer.protocols.page import messages
from inferencer.serving.counts import REQUEST_SECONDS, Histogram
from inferencer.supervisor.history import MOST_HAPPENED, MOST_VERSIONS, History
from inferencer.supervisor.overview import Overview
from inferencer.supervisor.peers import Peers
from inferencer.supervisor.traffic import Traffic
from paramsync.rpc.client import NO_CREDENTIALS
from paramsync.status import Event, EventKind, Quarantined, State, Status
from paramsync.v1 import sync_pb2 as pb
from paramsync.version import Version
from tests.support.programs import eventually
from tests.support.servers import add_models, serving


def version(number: int, **more: Any) -> Version:
    values = {"step": number, "prefix": f"ckpt-{number}", "step_done_at": 1.0, "snapshot_at": 1.0, "committed_at": 2.0}
    return Version(number=number, **{**values, **more})


def event(kind: EventKind, number: int, at: float = 3.0, **more: Any) -> Event:
    return Event(kind=kind, model="m", version=version(number), at=at, **more)


def versions(history: History) -> dict[int, Any]:
    return {seen["number"]: seen for seen in shown(history)["versions"]}


def shown(history: History) -> dict[str, Any]:
    return history.as_json(0.0, whole=True)


def test_a_version_is_told_with_all_that_became_of_it() -> None:
    history = History()
    history.hear(event(EventKind.FOUND, 7))
    history.hear(event(EventKind.RESTORING, 7))
    history.hear(event(EventKind.RESTORED, 7, 4.0, restore_seconds=0.25))
    history.hear(event(EventKind.SWAPPED, 7, 5.0))
    history.hear(event(EventKind.QUARANTINED, 8, 6.0, reason="truncated"))
    seen = versions(history)
    assert (seen[7]["committed_at"], seen[7]["restored_at"], seen[7]["served_at"]) == (2.0, 4.0, 5.0)
    assert (seen[7]["restore_seconds"], seen[7]["quarantined_at"]) == (0.25, None)
    assert (seen[8]["quarantined_at"], seen[8]["reason"]) == (6.0, "truncated")


def test_a_sample_has_the_lowest_and_the_highest_age_since_the_one_before() -> None:
    history = History()
    for number, done, served in ((1, 10.0, 10.5), (2, 13.0, 13.25), (3, 14.0, 14.5)):
        swapped = replace(event(EventKind.SWAPPED, number, served), version=version(number, step_done_at=done))
        history.hear(swapped)
    history.sample({"age": 0.75})
    history.sample({"age": 1.75})
    history.sample({"age": None})
    ages = [(one.get("age_low"), one.get("age_high")) for one in shown(history)["traffic"]]
    assert ages == [(0.25, 3.25), (1.75, 1.75), (None, None)]


def test_ten_thousand_versions_stay_few_and_what_was_wrong_stays_longest() -> None:
    history = History()
    for number in range(10_000):
        history.hear(event(EventKind.FOUND, number))
        if number % 1000 == 0:
            history.hear(event(EventKind.QUARANTINED, number, reason="bad"))
    seen = versions(history)
    assert MOST_VERSIONS // 2 < len(seen) <= MOST_VERSIONS
    assert set(range(0, 10_000, 1000)) <= seen.keys()
    assert set(range(9_800, 10_000)) <= seen.keys()  # the newest, all of them
    assert min(number for number in seen if number % 1000) < 2_000  # and some of the oldest


def test_what_is_chosen_is_told_whoever_chose_it() -> None:
    history = History()
    status = Status(model="m", store=Path("s"), state=State.SERVING, serving=version(9))
    history.look(status, 1.0)
    history.look(replace(status, lag_seconds=3.0), 2.0)  # time goes on: that is no change
    assert shown(history)["happened"] == []
    changes = [
        replace(status, pinned=9),
        replace(status, pinned=7),
        replace(status, labels={"canary": 9}),
        replace(status, labels={}, reason="the disk is gone"),
    ]
    for change in changes:
        history.look(change, 5.0)
    told = [(one["kind"], one.get("number"), one.get("label")) for one in shown(history)["happened"]]
    assert told == [
        ("pinned", 9, None),
        ("rolled back", 7, None),
        ("unpinned", 7, None),
        ("labelled", 9, "canary"),
        ("unlabelled", 9, "canary"),
        ("error", None, None),
    ]
    for number in range(10, 10 + 2 * MOST_HAPPENED):
        history.look(replace(status, pinned=number), 6.0)
    assert len(shown(history)["happened"]) == MOST_HAPPENED


def test_what_a_version_says_of_itself_cannot_break_the_json() -> None:
    found = version(1 << 60, metrics={"loss": float("nan"), "</script>\u2028": float("inf"), "x" * 5000: 1.5})
    case = Quarantined(number=1 << 60, reason="y" * 100_000, since=1.0)
    status = Status(model="<img>", store=Path("s"), serving=found, quarantined=(case,) * 1000)
    told = json.loads(messages.text(messages.of_status(status)))
    assert told["serving"]["number"] == str(1 << 60)  # a browser's numbers would round it
    assert list(told["serving"]["metrics"].values()) == [None, None, 1.5]
    assert max(map(len, told["serving"]["metrics"])) <= 200
    assert len(messages.text(told)) < 200_000


def counts(*answers: tuple[str, str, float], code: str = "OK") -> dict[Any, Histogram]:
    found: dict[Any, Histogram] = {}
    for model, number, seconds in answers:
        found.setdefault((model, "s", number, "rest", code), Histogram(REQUEST_SECONDS)).add(seconds)
    return found


def test_rates_are_of_what_is_new() -> None:
    traffic = Traffic()
    before = counts(*[("m", "1", 0.0004)] * 10)
    assert traffic.look([before], 10.0) == {}
    after = counts(*[("m", "1", 0.0004)] * 30, ("m", "2", 0.02))
    failed = counts(("m", "2", 0.1), ("m", "3", 0.1), code="INTERNAL")
    found = traffic.look([after, failed], 12.0)
    assert (found["m"]["rate"], found["m"]["failed"]) == (10.5, 1.0)
    assert found["m"]["versions"]["3"] == [0.0, None, None, 0.5]
    assert (found["m"]["versions"]["1"][3], found["m"]["versions"]["2"][3]) == (0.0, 0.5)
    assert found["m"]["versions"]["1"][0] == 10.0
    assert 0.00025 <= found["m"]["versions"]["1"][1] <= 0.0005
    assert 0.01 <= found["m"]["versions"]["2"][2] <= 0.025


def test_a_version_that_is_not_told_apart_any_more_is_no_traffic() -> None:
    traffic = Traffic()
    traffic.look([counts(*[("m", "1", 0.001)] * 100)], 1.0)
    found = traffic.look([counts(*[("m", "older", 0.001)] * 101)], 2.0)
    assert found["m"]["rate"] == 1.0
    assert "versions" not in found["m"]


def test_a_worker_that_begins_again_is_no_traffic() -> None:
    traffic = Traffic()
    traffic.look([counts(*[("m", "1", 0.001)] * 100)], 1.0)
    assert traffic.look([counts(("m", "1", 0.001))], 2.0)["m"]["rate"] == 0.0


def test_a_sample_has_the_traffic_of_workers_and_of_those_that_are_no_more() -> None:
    key, answered = ("m", "Predict", "7", "", "OK"), Histogram(REQUEST_SECONDS)
    overview = Overview(list, lambda: [{}, {key: answered}], lambda: ({"m": Status(model="m", store=Path("s"))}, ""))
    overview.sample()
    answered.add(0.001)
    overview.sample()
    assert json.loads(overview.state())["models"]["m"]["traffic"][-1]["rate"] > 0


def test_a_model_that_is_served_no_more_is_gone() -> None:
    names = ["a", "b"]
    overview = Overview(list, list, lambda: ({name: Status(model=name, store=Path("/s")) for name in names}, ""))
    overview.look()
    names.remove("a")
    assert list(json.loads(overview.state())["models"]) == ["b"]


def test_the_status_is_never_older_than_the_history() -> None:
    status = Status(model="m", store=Path("s"), state=State.SERVING)
    overview = Overview(list, list, lambda: ({"m": status}, "trouble"))
    overview.look()
    status = replace(status, serving=version(8))  # and nobody looks before a page asks
    state = json.loads(overview.state())
    assert (state["models"]["m"]["status"]["serving"]["number"], state["server"]["trouble"]) == (8, "trouble")


def test_peers_are_asked_while_a_page_is_open_and_one_that_hangs_delays_nobody(nobody: str) -> None:
    skewed = pb.ModelStatus(model="m", state=pb.ModelStatus.SERVING, serving=pb.Version(number=7), swap_skew_seconds=2)
    with serving(add_models(skewed)) as one, socket.create_server(("127.0.0.1", 0)) as silent:
        peers = Peers((f"127.0.0.1:{silent.getsockname()[1]}", one, nobody), lambda: NO_CREDENTIALS)
        overview = Overview(list, list, lambda: ({}, ""), peers=peers)

        def rows() -> dict[str, Any]:
            return {row["address"]: row for row in json.loads(overview.state())["peers"]}

        peers.run_once(wanted=True)
        eventually(lambda: {one, nobody} <= rows().keys(), lambda: "the answers of a server and of none")
        assert rows()[one]["error"] is None
        model = rows()[one]["models"]["m"]
        assert (model["state"], model["serving"], model["swap_skew_seconds"], model["lag_seconds"]) == (
            "serving",
            7,
            2,
            None,
        )
        assert "not reachable" in rows()[nobody]["error"]
        assert rows()[nobody]["models"] == {}
        peers.run_once(wanted=False)
        assert rows() == {}


@pytest.mark.parametrize("pinned", [None, 7])
def test_a_page_that_is_opened_late_is_told_how_old_answers_are_now(pinned: int | None) -> None:
    old = time.time() - 152
    serving = version(7, step_done_at=old, committed_at=old + 1)
    case = Quarantined(number=8, reason="not finite", since=old + 3)
    status = Status(model="m", store=Path("s"), published=serving, serving=serving, pinned=pinned, quarantined=(case,))
    seen = status.at(old + 1.1, time.monotonic())
    overview = Overview(list, list, lambda: ({"m": seen}, ""))  # and nothing has happened since
    first = json.loads(overview.state())
    told = first["models"]["m"]["status"]
    assert told["serving_age_seconds"] == first["now"] - old
    assert told["since_publication_seconds"] == first["now"] - old - 1
