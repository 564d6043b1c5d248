"""A Version's record says the same after a trip through its file, and refuses what no publisher wrote."""

from __future__ import annotations

import json

import pytest

from paramsync.version import Version

VERSION = Version(
    number=420,
    step=419,
    prefix="ckpt-420",
    graph="ab12",
    step_done_at=1.5,
    snapshot_at=1.6,
    committed_at=1.7,
    bytes=10,
    bytes_written=5,
    checksum="cd34",
    finite=True,
    metrics={"loss": 0.25},
)


def test_a_record_reads_back_equal() -> None:
    assert Version.from_json(VERSION.to_json()) == VERSION


def test_a_record_of_a_newer_publisher_is_read_without_what_is_new() -> None:
    assert Version.from_json(json.dumps({**json.loads(VERSION.to_json()), "colour": "blue"})) == VERSION


def test_a_record_of_an_older_publisher_is_read_without_what_it_did_not_know() -> None:
    values = json.loads(VERSION.to_json())
    del values["bytes_written"], values["checksum"], values["finite"]
    read = Version.from_json(json.dumps(values))
    assert (read.bytes_written, read.checksum, read.finite) == (0, "", False)


def test_metrics_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        VERSION.metrics["loss"] = 1.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": "420"}, "number: expected a whole number of 64 bits"),
        ({"step": 2**63}, "step: expected a whole number of 64 bits"),
        ({"step": True}, "step: expected a whole number"),
        ({"committed_at": 10**400}, "committed_at: int too large to convert"),
        ({"committed_at": float("nan")}, "committed_at: expected seconds since the epoch"),
        ({"snapshot_at": "now"}, "snapshot_at: expected a number, found str"),
        ({"metrics": [1]}, "metrics: "),
        ({"metrics": {"loss": "low"}}, "metrics: expected a number, found str"),
        ({"prefix": None}, "prefix: expected text, found NoneType"),
        ({"finite": 1}, "finite: expected true or false, found int"),
    ],
)
def test_a_value_that_no_publisher_wrote_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Version.from_json(json.dumps({**json.loads(VERSION.to_json()), **change}))


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match="expected number, prefix, step_done_at, snapshot_at, found 'step'"):
        Version.from_json('{"step": 1}')


@pytest.mark.parametrize("text", ["", "[]", "7", "{"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a JSON object|Expecting"):
        Version.from_json(text)
