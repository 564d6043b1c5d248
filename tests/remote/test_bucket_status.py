"""The status of a mirror: what a note may hold, and the stages of a version."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from paramsync.remote import copy_note
from paramsync.remote.bucket_status import BucketStatus, Copied, from_values, stages
from paramsync.remote.copy_note import CopyNote
from paramsync.status import Status
from paramsync.version import Version

COPIED = Copied(
    number=7, step_done_at=1.0, published_at=2.0, in_bucket_at=4.0, here_at=7.0, way="delta", deltas=2, bytes=10,
    size=1000, seconds=2.0,
)  # fmt: skip
STATUS = BucketStatus(address="s3://b/m", answered_at=8.0, newest=9, behind=2, waiting_since=7.5, copied=COPIED)


@pytest.mark.parametrize("status", [STATUS, BucketStatus(address="s3://b/m"), replace(STATUS, over=True)])
def test_a_status_comes_back_from_json(status: BucketStatus) -> None:
    assert from_values(json.loads(json.dumps(asdict(status)))) == status


def test_fields_of_a_newer_release_are_left_out() -> None:
    values = asdict(STATUS)
    assert from_values({**values, "colour": 1, "copied": {**values["copied"], "colour": 1}}) == STATUS


@pytest.mark.parametrize(
    "change",
    [
        {"address": 1},
        {"over": 1},
        {"behind": -1},
        {"behind": None},
        {"behind": True},
        {"newest": 1 << 63},
        {"answered_at": float("nan")},
        {"answered_at": float("inf")},
        {"copied": 1},
        {"copied": {}},
        {"copied": {**asdict(COPIED), "bytes": "10"}},
    ],
    ids=repr,
)
def test_a_malformed_status_is_refused_and_its_note_with_it(change: dict[str, Any], tmp_path: Path) -> None:
    values = {**asdict(STATUS), **change}
    with pytest.raises(ValueError, match="expected"):
        from_values(values)
    (tmp_path / copy_note.NAME).write_text(json.dumps({"address": "s3://b/m", "status": values}))
    assert copy_note.read(tmp_path) is None


def test_a_status_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="expected fields by name"):
        from_values([])


def test_the_stages_of_a_version_add_up_to_its_way_from_the_step() -> None:
    assert stages(COPIED) == {"publish": 1, "upload": 2, "download": 3}
    assert stages(replace(COPIED, served_at=7.25)) == {"publish": 1, "upload": 2, "download": 3, "serve": 0.25}


def test_a_clock_that_is_behind_makes_no_stage_negative() -> None:
    assert stages(replace(COPIED, here_at=3.0)) == {"publish": 1, "upload": 2, "download": 0}


def test_a_version_of_an_earlier_release_has_no_time_of_its_own_in_the_bucket() -> None:
    assert stages(replace(COPIED, in_bucket_at=None)) == {"publish": 1, "upload": 5, "download": 0}


def test_the_time_of_a_note_is_that_of_the_last_answer_and_not_of_the_note(tmp_path: Path) -> None:
    assert copy_note.answered_at(tmp_path) is None
    CopyNote("s3://b/m").write(tmp_path)
    assert copy_note.answered_at(tmp_path) is None
    CopyNote("s3://b/m", "does not answer").write(tmp_path, 8.0)
    assert copy_note.answered_at(tmp_path) == 8.0
    before = (tmp_path / copy_note.NAME).stat().st_ino
    copy_note.touch(tmp_path, 9.0)
    assert copy_note.answered_at(tmp_path) == 9.0
    assert (tmp_path / copy_note.NAME).stat().st_ino == before


@pytest.mark.parametrize(("now", "served_at"), [(6.9, 7.0), (9.0, 8.0)])
def test_a_version_serves_no_earlier_than_its_mirror_says_that_it_is_there(now: float, served_at: float) -> None:
    version = Version(number=7, step=7, prefix="ckpt-7", step_done_at=1.0, snapshot_at=1.0)
    serving = Status(model="m", store=Path("m"), serving=version, bucket=STATUS, served_at=100.0)
    bucket = serving.at(now, monotonic=100.0 if now < 7.0 else 101.0).bucket
    assert bucket is not None
    assert bucket.copied is not None
    assert bucket.copied.served_at == served_at
