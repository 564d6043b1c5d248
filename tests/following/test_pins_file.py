"""Pins and labels survive a restart; a damaged pins file does not keep a model from being served."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramsync.errors import InputError, SyncError
from paramsync.following.follower import Follower
from paramsync.following.operator_requests import Action
from paramsync.following.pins_file import MOST_LABELS, Choices, PinsFile
from paramsync.following.replica import Replica
from tests.support.followers import serving
from tests.support.published import Publisher, ask, proven


def restarted(publisher: Publisher, state: Path, **more: object) -> Follower:
    follower = Follower(Replica("m", publisher.path), keep=state, **more)  # type: ignore[arg-type]
    follower.run_once()
    return follower


def done(follower: Follower, action: Action, number: int | None = None, label: str = "") -> None:
    answer = follower.ask(action, number, label)
    follower.run_once()
    answer.result(0)


def test_a_pin_and_labels_survive_a_restart(publisher: Publisher, tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        publisher.publish(step)
    first = restarted(publisher, tmp_path / "state")
    done(first, Action.PIN, 2)
    done(first, Action.LABEL, 1, "stable")
    second = restarted(publisher, tmp_path / "state")
    status = second.status()
    assert (status.pinned, serving(second), status.labels, status.reason) == (2, 2, {"stable": 1}, "")
    assert proven(*ask(second))
    assert status.restores == 2  # nothing else was restored on the way
    done(second, Action.UNPIN)
    done(second, Action.UNLABEL, label="stable")
    third = restarted(publisher, tmp_path / "state")
    assert (third.status().pinned, serving(third), third.status().labels) == (None, 4, {})


def test_what_is_pinned_and_gone_is_reported_and_the_newest_is_served(publisher: Publisher, tmp_path: Path) -> None:
    PinsFile(tmp_path / "state", "m", tmp_path / "m").write(Choices(pinned=1, labels={"stable": 2}))
    for step in (5, 6):
        publisher.publish(step)
    follower = restarted(publisher, tmp_path / "state")
    status = follower.status()
    assert (serving(follower), status.pinned, status.labels) == (6, 1, {})
    assert status.reason == (
        f"pinned to version 1, the label 'stable' names version 2, which store {publisher.path} does not have"
    )
    publisher.publish(7)
    follower.run_once()
    assert serving(follower) == 6  # a pinned model stays where it is
    with pytest.raises(SyncError, match="pinned to version 1; unpin"):
        done(follower, Action.SYNC)
    done(follower, Action.UNPIN)
    done(follower, Action.UNLABEL, label="stable")
    assert (serving(follower), follower.status().reason) == (7, "")
    assert PinsFile(tmp_path / "state", "m", tmp_path / "m").read() == Choices()


def test_a_label_of_the_settings_that_was_taken_away_stays_away_until_they_say_another_one(
    publisher: Publisher, tmp_path: Path
) -> None:
    for step in (1, 2, 3):
        publisher.publish(step)

    def after_restart(**labels: int) -> Follower:
        return restarted(publisher, tmp_path / "state", labels=labels)

    first = after_restart(stable=1, canary=2)
    done(first, Action.UNLABEL, label="stable")
    done(first, Action.LABEL, 3, "canary")
    for _ in range(2):
        assert after_restart(stable=1, canary=2).status().labels == {"canary": 3}
    assert after_restart(stable=2, canary=2).status().labels == {"stable": 2, "canary": 3}
    assert after_restart(stable=1, canary=1).status().labels == {"stable": 1, "canary": 1}
    assert after_restart(stable=1).status().labels == {"stable": 1}


def test_every_label_that_was_given_survives_a_restart_however_many_are_asked_for(
    publisher: Publisher, tmp_path: Path
) -> None:
    name = "\N{GRINNING FACE}" * 190
    for step in (1, 2):
        publisher.publish(step)
    first = restarted(publisher, tmp_path / "state")
    done(first, Action.PIN, 1)
    answers = {f"{name}{at}": first.ask(Action.LABEL, 1, f"{name}{at}") for at in range(600)}
    first.run_once()
    given = {label: 1 for label, answer in answers.items() if answer.exception(0) is None}
    assert len(given) == MOST_LABELS
    with pytest.raises(SyncError, match=f"expected at most {MOST_LABELS} labels.*take one away first"):
        answers[f"{name}599"].result(0)
    second = restarted(publisher, tmp_path / "state")
    assert (second.status().pinned, second.status().labels) == (1, given)
    done(second, Action.LABEL, 2, f"{name}0")  # one that is there may be moved
    done(second, Action.UNLABEL, None, f"{name}1")
    done(second, Action.LABEL, 2, "another")


@pytest.mark.parametrize("label", ["", "a\nb", "\ud800", "x" * 201])
def test_a_label_that_could_not_be_kept_is_refused(publisher: Publisher, tmp_path: Path, label: str) -> None:
    publisher.publish(1)
    first = restarted(publisher, tmp_path / "state")
    done(first, Action.PIN, 1)
    with pytest.raises(InputError, match="label: expected a name"):
        first.label(label, 1)
    assert restarted(publisher, tmp_path / "state").status().pinned == 1


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = PinsFile(tmp_path, "m", tmp_path / "m")
    kept.write(Choices(pinned=4))
    kept.write(Choices(pinned=5, labels={f"{at}" + "x" * 1000: at for at in range(5000)}))
    assert caplog.text.count("pins and labels will not survive a restart") == 1
    assert PinsFile(tmp_path, "m", tmp_path / "m").read() == Choices(pinned=4)


DAMAGED = {
    "empty": b"",
    "binary": bytes(range(256)),
    "no labels": b'{"pinned": 4}',
    "a pin that is no number": b'{"pinned": "four", "labels": {}}',
    "a version beyond all": b'{"pinned": 1e400, "labels": {}}',
    "a given label that is none": b'{"pinned": null, "labels": {}, "given": {"stable": null}}',
    "far too deep": b"[" * 100_000,
    "far too long": b" " * (2 << 20),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_warned_of_and_written_anew(
    publisher: Publisher, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / "m.json").write_bytes(content)
    kept = PinsFile(tmp_path, "m", tmp_path / "m")
    assert kept.read() == Choices()
    assert caplog.text.count("no pin and no label is known from before") == 1
    kept.write(Choices(pinned=4))
    assert kept.read() == Choices(pinned=4)


def test_a_state_directory_that_cannot_be_written_costs_one_warning(
    publisher: Publisher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file")
    for step in (1, 2):
        publisher.publish(step)
    follower = restarted(publisher, tmp_path / "state" / "below")
    caplog.clear()
    done(follower, Action.PIN, 1)
    done(follower, Action.LABEL, 2, "canary")
    assert serving(follower) == 1
    assert caplog.text.count("pins and labels will not survive a restart") == 1


def test_names_of_models_are_no_paths(tmp_path: Path) -> None:
    for name in ("../up", "a/b", "..", "ü", "a b"):
        PinsFile(tmp_path / "state", name, tmp_path / "m").write(Choices(pinned=1))
        assert PinsFile(tmp_path / "state", name, tmp_path / "m").read() == Choices(pinned=1)
    assert len(list((tmp_path / "state").iterdir())) == 5
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


def test_what_was_kept_of_another_store_does_not_count(publisher: Publisher, tmp_path: Path) -> None:
    PinsFile(tmp_path, "m", tmp_path / "another").write(Choices(pinned=1, labels={"stable": 1}))
    for step in (1, 2):
        publisher.publish(step)
    follower = restarted(publisher, tmp_path)
    status = follower.status()
    assert (serving(follower), status.pinned, status.labels, status.reason) == (2, None, {}, "")


def test_what_two_processes_choose_for_one_model_is_all_kept(tmp_path: Path) -> None:
    one, other = (PinsFile(tmp_path, "m", tmp_path / "m") for _ in range(2))
    one.write(Choices(pinned=3))
    other.write(Choices(labels={"stable": 2}))
    one.write(Choices(pinned=3, labels={"canary": 4}))
    after = Choices(pinned=3, labels={"stable": 2, "canary": 4})
    assert PinsFile(tmp_path, "m", tmp_path / "m").read() == after
    other.write(Choices(pinned=5, labels={"stable": 2}))
    one.write(Choices(pinned=3))  # the label is taken away, the pin is not spoken of
    assert PinsFile(tmp_path, "m", tmp_path / "m").read() == Choices(pinned=5, labels={"stable": 2})
