"""What a status looks like: a table as narrow as the terminal, what is wrong in colour, ages in words."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from paramsync.cli.overview import StatusRow, StatusTable, behind, lag, refusals
from paramsync.v1 import sync_pb2 as pb
from tests.support.servers import SERVING, TRAINING

COLOURS = {"TERM": "xterm"}
LONG = "recommender-candidate-generation-tower-european-union"
CHINESE = pb.ModelStatus(model="手写数字识别模型", state=pb.ModelStatus.WAITING, reason="/store: no such directory")
FLEET = [
    StatusRow("10.0.0.1:8502", SERVING),
    StatusRow("10.0.0.2:8502", pb.ModelStatus(model=LONG, state=pb.ModelStatus.SERVING, lag_seconds=0, pinned=7)),
    StatusRow("inference-3.eu-central-1.example.org:8502", CHINESE),
    StatusRow("10.0.0.4:8502", missing="not reachable (Connection refused)", lost=True),
    StatusRow("[2001:db8::5]:8502", missing="no model is served"),
]


def shown(overview: StatusTable, *, width: int = 80, colours: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colours, markup=False, highlight=False, _environ=COLOURS)
    console.print(overview)
    return out.getvalue()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
@pytest.mark.parametrize(
    "rows", [FLEET, FLEET[:1], FLEET[1:2], FLEET[2:3], []], ids=["fleet", "one", "long", "chinese", "none"]
)
@pytest.mark.parametrize("several", [True, False])
def test_a_status_is_never_wider_than_the_terminal(rows: list[StatusRow], width: int, several: bool) -> None:
    text = shown(StatusTable(rows, 1000.0, trainer=TRAINING, several=several), width=width)
    assert max(map(cell_len, text.splitlines())) <= width


def test_a_status_names_the_trusted_key_that_signed_what_serves() -> None:
    signed = pb.ModelStatus(model="digits", state=pb.ModelStatus.SERVING, signed_by="1f" * 8)
    assert f"digits: signed by key {'1f' * 8}" in shown(StatusTable([StatusRow(model=signed)], 1000.0))
    assert "signed" not in shown(StatusTable([StatusRow(model=SERVING)], 1000.0))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_name_is_cut(width: int) -> None:
    lines = shown(StatusTable(FLEET, 1000.0, several=True), width=width).splitlines()
    text = "".join(line.replace("model", "").replace("server", "").strip() for line in lines)
    for row in FLEET:
        assert row.server in text
    assert LONG in text


def test_a_fleet_in_80_columns_is_one_table_with_a_row_for_who_does_not_answer() -> None:
    rows = [FLEET[0], StatusRow("10.0.0.2:8502", pb.ModelStatus(model="cats", state=pb.ModelStatus.SERVING)), FLEET[3]]
    heading, *lines = shown(StatusTable(rows, 1000.0, several=True)).splitlines()
    assert heading.split() == ["server", "model", "state", "serving", "published", "lag", "age"]
    column = heading.index("state")
    assert [line[column:].split()[0] for line in lines[:2]] == ["serving", "serving"]
    assert lines[0].split()[:-1] == [
        "10.0.0.1:8502",
        "digits",
        "serving",
        "420",
        "421",
        "12",
        "s",
        "behind,",
        "1",
        "step",
    ]
    assert lines[2].split(maxsplit=1) == ["10.0.0.4:8502", "not reachable (Connection refused)"]


def test_a_wide_terminal_has_what_is_in_memory_too() -> None:
    text = shown(StatusTable([StatusRow("", SERVING)], 1000.0), width=120)
    assert "in memory" in text
    assert "420, 419" in text


def refused(*numbers: int, why: str = "/store/ckpt-{}.data: found NaN") -> list[pb.Quarantine]:
    return [pb.Quarantine(number=number, reason=why.format(number), since=1000.0 + number) for number in numbers]


@pytest.mark.parametrize(
    ("quarantined", "said"),
    [
        ([], []),
        (refused(7), ["version 7 was refused 3.0 s ago: /store/ckpt-7.data: found NaN"]),
        (refused(6, 7), ["versions 6 and 7 were refused, the last 3.0 s ago: /store/ckpt-7.data: found NaN"]),
        (
            refused(3, 5, 6, 7),
            ["versions 3, 5, 6 and 7 were refused, the last 3.0 s ago: /store/ckpt-7.data: found NaN"],
        ),
        (
            refused(*range(1, 8)),
            ["7 versions from 1 to 7 were refused, the last 3.0 s ago: /store/ckpt-7.data: found NaN"],
        ),
        (
            [*refused(4, why="cut"), *refused(5), *refused(6, why="cut"), *refused(7)],
            [
                "versions 4 and 6 were refused, the last 4.0 s ago: cut",
                "versions 5 and 7 were refused, the last 3.0 s ago: /store/ckpt-7.data: found NaN",
            ],
        ),
    ],
)
def test_versions_that_were_refused_for_one_reason_are_one_sentence(
    quarantined: list[pb.Quarantine], said: list[str]
) -> None:
    assert refusals(quarantined, 1010.0) == said


def test_what_is_wrong_is_red_and_what_waits_is_yellow() -> None:
    red, yellow = "\x1b[31m", "\x1b[33m"
    text = shown(StatusTable(FLEET, 1000.0, several=True), colours=True)
    assert f"{red}not reachable" in text
    assert f"{red}10.0.0.1:8502 digits: version 421 was refused" in text
    assert f"{yellow}waiting" in text
    assert f"{yellow}12 s behind" in text
    fine = pb.ModelStatus(model="m", state=pb.ModelStatus.SERVING, lag_seconds=0.2, lag_steps=3)
    text = shown(StatusTable([StatusRow("", fine)], 1000.0), colours=True)
    assert red not in text
    assert yellow not in text
    fine.MergeFrom(pb.ModelStatus(publisher=pb.ModelStatus.DIED, publisher_since=988.0))
    text = shown(StatusTable([StatusRow("", fine)], 1000.0), colours=True)
    assert f"{yellow}serving" in text
    assert f"{red}m: the trainer died 12 s ago" in text


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_nothing_is_coloured_where_that_is_not_wanted(environment: dict[str, str]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, markup=False, _environ={"TERM": "xterm", **environment})
    console.print(StatusTable(FLEET, 1000.0, several=True))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[3" not in text
    assert ("\x1b" in text) == ("NO_COLOR" in environment)  # bold is no colour


@pytest.mark.parametrize(
    ("status", "seconds", "said"),
    [
        (pb.ModelStatus(lag_seconds=3.2, lag_steps=41), 0, "3.2 s behind, 41 steps"),
        (pb.ModelStatus(lag_seconds=3.2, lag_steps=9, lag_versions=24), 0, "3.2 s behind, 9 steps, 24 versions"),
        (pb.ModelStatus(lag_seconds=3.2, lag_steps=1), 0, "3.2 s behind, 1 step"),
        (pb.ModelStatus(lag_seconds=3.2), 2, "5.2 s behind"),
        (pb.ModelStatus(lag_seconds=0, lag_steps=0), 60, "up to date"),
        (pb.ModelStatus(lag_steps=5), 0, "5 steps behind"),
        (pb.ModelStatus(), 0, "–"),  # noqa: RUF001
    ],
)
def test_how_far_it_is_behind_is_said_in_words(status: pb.ModelStatus, seconds: float, said: str) -> None:
    assert behind(status, seconds) == said


def test_a_lag_is_short() -> None:
    assert lag(SERVING) == "12 s, 1 step"
