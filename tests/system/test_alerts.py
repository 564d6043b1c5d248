"""The alerts, as Prometheus evaluates them, over the pages of a real follower in the troubles that they are for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from inferencer.serving.counts import Followed
from inferencer.serving.metrics import Metrics
from inferencer.serving.prometheus import Exposition
from inferencer.serving.served import Models, ServedModel
from inferencer.settings.settings import ModelSettings
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.replica import Replica
from paramsync.store.store import record_file
from paramsync.version import Version
from tests.inferencer.serving.test_metrics import parsed
from tests.support.prometheus import DEPLOYED, promtool
from tests.support.published import Publisher
from tests.support.troubles import as_nobody

pytestmark = pytest.mark.slow

BEGINS = 5  # the minute of the trouble; a version is published in each minute before
MINUTES = 72


class Story:
    """A follower, its publisher and its page, on a clock that goes a minute at a time."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.minute = 0
        self.follower = Follower(Replica("m", publisher.path), clock=lambda: time.time() + 60 * self.minute)
        model = ServedModel(ModelSettings(name="m", store=publisher.path), Followed(self.follower))
        self._metrics = Metrics(cast(Models, [model]))
        self._series: dict[str, list[str]] = {}

    def publish(self, publish: Callable[[int], Version]) -> Version:
        """At this time of the story's clock."""
        version = publish(self.minute + 1)
        later = 60.0 * self.minute
        version = replace(
            version,
            step_done_at=version.step_done_at + later,
            snapshot_at=version.snapshot_at + later,
            committed_at=(version.committed_at or 0.0) + later,
        )
        record_file(self.publisher.path, version.prefix).write_text(version.to_json())
        return version

    def scrape(self) -> None:
        page = parsed(Exposition(self._metrics).text())
        page["up"] = {(): 1.0}
        for name, samples in page.items():
            for labels, value in samples.items():
                told = [("job", "paramsync-inferencer"), ("instance", "a:8501"), *labels]
                series = f"{name}{{{', '.join(f'{label}={json.dumps(text)}' for label, text in told)}}}"
                values = self._series.setdefault(series, [])
                values += ["_"] * (self.minute - len(values)) + [repr(value)]
        self.minute += 1

    def check(self, folder: Path, firing: dict[int, list[str]]) -> None:
        """Which alerts fire in which minutes, and no others."""
        tests = [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names],
            }
            for minute, names in firing.items()
        ]
        series = [{"series": name, "values": " ".join(values)} for name, values in self._series.items()]
        case = {"interval": "1m", "input_series": series, "promql_expr_test": tests}
        rules = {"rule_files": [str(DEPLOYED / "alerts.yml")], "evaluation_interval": "1m", "tests": [case]}
        (folder / "recorded.yml").write_text(json.dumps(rules))
        assert "SUCCESS" in promtool("test", "rules", folder / "recorded.yml")


def nothing(story: Story) -> None:
    story.publish(story.publisher.publish)
    story.follower.run_once()


def pinned(story: Story) -> None:
    if story.minute == BEGINS:
        story.follower.ask(Action.PIN, story.minute)
        story.follower.run_once()
    nothing(story)


def quarantined(story: Story) -> None:
    story.publish(story.publisher.publish_bad)
    story.follower.run_once()


def dead_trainer(story: Story) -> None:
    if story.minute == BEGINS:
        story.publisher.fail()
    story.follower.run_once()


def beyond_this_machine(story: Story) -> None:
    version = story.publish(story.publisher.publish)
    (story.publisher.path / f"{version.prefix}.data-00000-of-00001").chmod(0)
    as_nobody(story.follower.run_once)


def disk_away(story: Story) -> None:
    if story.minute == BEGINS:
        story.publisher.path.rename(story.publisher.path.with_name("away"))
    story.follower.run_once()


def disk_unreadable(story: Story) -> None:
    if story.minute == BEGINS:
        story.publisher.path.chmod(0)
    as_nobody(story.follower.run_once)


@dataclass(frozen=True)
class Case:
    trouble: Callable[[Story], None]
    alert: str
    after: int = 0
    """Minutes: before them nothing fires."""


CASES = [
    Case(nothing, "", MINUTES),
    Case(pinned, "ParamsyncPinnedForLong", 60),
    Case(quarantined, "ParamsyncVersionQuarantined"),
    Case(dead_trainer, "ParamsyncTrainerDied", 1),
    Case(beyond_this_machine, "ParamsyncNewestDoesNotServe", 1),
    Case(disk_away, "ParamsyncStoreLost", 1),
    Case(disk_unreadable, "ParamsyncStoreLost", 1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.trouble.__name__)
def test_each_trouble_fires_its_own_alert_in_time_and_no_other(
    publisher: Publisher, tmp_path: Path, case: Case
) -> None:
    story = Story(publisher)
    for minute in range(MINUTES):
        (nothing if minute < BEGINS else case.trouble)(story)
        story.scrape()
    quiet = [minute for minute in range(1, MINUTES) if minute < BEGINS + case.after]
    loud = range(BEGINS + case.after, MINUTES)
    story.check(tmp_path, {minute: [] for minute in quiet} | {minute: [case.alert] for minute in loud})
