"""Which version a follower restores, and where a rollback goes, as tables of cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from paramsync.following.policy import newest, next_restore, served_before, stand_in, upcoming
from paramsync.status import Back, Quarantined, Status
from paramsync.version import Candidate
from tests.support.written import version


def one(number: int, files: str = "as published") -> Candidate:
    return Candidate(version(number), files)


BAD = "as published"


def case(
    name: str,
    published: Sequence[Candidate],
    expected: Candidate | None,
    serving: Candidate | None = None,
    bad: Mapping[int, str] | None = None,
    **more: Any,
) -> Any:
    """`bad` are the quarantined versions, with their files."""
    given = {"serving": serving, "quarantined": bad or {}, "pinned": None, **more}
    return pytest.param(published, given, expected, id=name)


V1, V2, V3, V9 = one(1), one(2), one(3), one(9)
CASES = [
    case("an empty store leaves nothing to restore", [], None),
    case("the newest is restored, others are skipped", [V1, V2, V3], V3, V1),
    case("nothing to do if the newest serves", [V1, V2], None, V2),
    case("a store that vanished changes nothing", [], None, V3),
    case("the newest good version is served after a restart", [V1, V2, V3], V2, None, {3: BAD}),
    case("a newer good version is taken past a quarantined one", [V1, V2, V3], V2, V1, {3: BAD}),
    case("nothing older than the serving version is taken", [V1, V2, V3], None, V2, {3: BAD}),
    case("if all are quarantined nothing is restored", [V1, V2], None, None, {1: BAD, 2: BAD}),
    case("a rewritten quarantined version is tried again", [one(2, "mended")], one(2, "mended"), None, {2: BAD}),
    case("a rewritten serving version is taken again", [one(2, "again")], one(2, "again"), V2),
    case("a rewritten bad version leaves the serving one", [V1, one(2, "x")], None, V2, {2: "x"}),
    case("a store that started over is followed", [V1, V2], V2, one(900)),
    case("in a store that started over bad versions are passed", [V1, V2], V1, one(900), {2: BAD}),
    case("a store that must not start over is not followed back", [V1, V2], None, V9, starts_over=False),
    case("a store that must not start over is followed on", [V1, one(10)], one(10), V9, starts_over=False),
    case("a pin leads back all the same", [V1, V9], V1, V9, pinned=1, starts_over=False),
    case("pinned, newer versions are left alone", [V1, V2], None, V1, pinned=1),
    case("a pinned version that is quarantined is not retried", [V1, V2], None, V2, {1: BAD}, pinned=1),
    case("a pinned version that is not there leaves the serving one", [V2], None, V2, pinned=1),
    case("if the pinned version is nowhere, any is better than none", [V1, V2], V1, None, {2: BAD}, pinned=7),
    case("if the pinned version is bad, any is better than none", [V1, V2], V2, None, {1: BAD}, pinned=1),
    case("if the pinned version is bad, older come before newer", [V1, V2, V3], V1, None, {2: BAD}, pinned=2),
    case("if the pinned version is bad, the nearest older one", [V1, V2, one(4)], V2, None, {3: BAD}, pinned=3),
    case("the pinned version comes before newer and older ones", [V1, V2, V3], V2, pinned=2),
    case("number 0 is a version like any other", [one(0), V1], one(0), V1, pinned=0),
    case("a waiting version is skipped", [V1, V2, V3], V2, V1, waiting=[3]),
    case("if all newer versions wait, the serving one stays", [V1, V2, V3], None, V1, waiting=[2, 3]),
    case("a waiting version does not serve, even if nothing else can", [V1], None, waiting=[1]),
    case("the serving version stays, even if its moment is to come again", [V1, V2], None, V2, waiting=[2]),
    case("a pinned version does not wait", [V1, V2], V2, V1, pinned=2, waiting=[2]),
    case("what stands in for a pinned version waits", [V1, V2], V1, None, pinned=7, waiting=[2]),
    case("a store did not start over if its newest version waits", [V1, one(10)], None, V9, waiting=[10]),
]


@pytest.mark.parametrize(("published", "given", "expected"), CASES)
def test_next_restore(published: Sequence[Candidate], given: dict[str, Any], expected: Candidate | None) -> None:
    assert next_restore(published, **given) == expected


@pytest.mark.parametrize(
    ("coming", "given", "expected"),
    [
        pytest.param({}, {}, [], id="nothing waits"),
        pytest.param({2: 5.0, 3: 6.0}, {}, [V2, V3], id="each at its moment"),
        pytest.param({2: 6.0, 3: 5.0}, {}, [V3], id="a newer version that comes earlier is in the way"),
        pytest.param({2: 5.0, 3: 5.0}, {}, [V3], id="of two with one moment the newer"),
        pytest.param({2: 5.0, 3: 6.0}, {"quarantined": {2: BAD}}, [V3], id="none that is quarantined"),
        pytest.param({2: 5.0, 3: 6.0}, {"pinned": 1, "pinned_next": 1}, [], id="none while another version is pinned"),
        pytest.param({None: 5.0}, {"pinned": 1}, [V3], id="an unpin to come: the newest"),
        pytest.param({None: 5.0, 3: 6.0}, {"pinned": 1}, [V2, V3], id="an unpin to come: what is newest then"),
        pytest.param(
            {None: 6.0, 3: 5.0}, {"pinned_next": 2}, [V3, V2], id="a pin to come: first the newest, then the pin"
        ),
    ],
)
def test_upcoming(coming: Mapping[int | None, float], given: dict[str, Any], expected: list[Candidate]) -> None:
    defaults: dict[str, Any] = {"serving": V1, "quarantined": {}, "pinned": None, "pinned_next": None}
    assert upcoming([V1, V2, V3], coming=coming, **{**defaults, **given}) == expected


@pytest.mark.parametrize(
    ("resident", "pinned", "expected"),
    [
        pytest.param([], None, None, id="nothing is in memory"),
        pytest.param([4, 2], None, 4, id="the newest in memory"),
        pytest.param([4, 2], 3, 2, id="pinned, none newer than the pin"),
        pytest.param([4], 3, None, id="pinned, what an operator went back from does not come back at once"),
        pytest.param([0], None, 0, id="number 0 is a version like any other"),
    ],
)
def test_stand_in_for_a_damaged_version(resident: list[int], pinned: int | None, expected: int | None) -> None:
    assert stand_in(resident, pinned=pinned) == expected


@pytest.mark.parametrize(
    ("swaps", "expected"),
    [  # the versions that came to serve, in this order; a rollback to a version is a negative number
        pytest.param([1], (), id="nothing served before the first"),
        pytest.param([1, 2, 2], (1,), id="a rewritten version was not before itself"),
        pytest.param([1, 2, 3, 2, 3], (2, 1), id="a version pinned and left again is there once"),
        pytest.param([1, 2, 3, 2, 3, -2, -1], (), id="two rollbacks go back twice"),
        pytest.param([1, 2, 3, -2, 3], (2, 1), id="a version that was rolled back is known once it served again"),
        pytest.param([1, 2, 3, 4, -2], (1,), id="a rollback past a version leaves that out"),
        pytest.param([5, 7, 9, -3], (), id="a rollback to a version that never served leaves nothing"),
        pytest.param([7, 0, 2], (0, 7), id="a store that started over goes on, number 0 is like any other"),
        pytest.param(range(100), tuple(range(98, 82, -1)), id="it does not grow for ever"),
    ],
)
def test_served_before(swaps: Sequence[int], expected: tuple[int, ...]) -> None:
    before: tuple[int, ...] = ()
    serving: int | None = None
    for swap in swaps:
        before, serving = served_before(before, left=serving, now=abs(swap), back=swap < 0), abs(swap)
    assert before == expected


ALL = (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("expected", "serving", "before", "resident", "published", "quarantined"),
    [
        pytest.param(Back(9, True), 5, (9, 1), (5, 9), ALL, (), id="the version that served before, also a newer one"),
        pytest.param(Back(1, True), 5, (0, 1), (5,), ALL, (), id="a version that is gone is passed over"),
        pytest.param(Back(1, True), 5, (3, 1), (5,), ALL, (3,), id="a bad version is passed over"),
        pytest.param(Back(3, True), 5, (3,), (5, 3), ALL, (3,), id="a version in memory can be used"),
        pytest.param(Back(2, False), 5, (), (5,), ALL, (4, 3), id="without a history, the next lower good version"),
        pytest.param(None, 1, (), (1,), ALL, (), id="below the lowest is nothing"),
        pytest.param(None, None, (), (), ALL, (), id="nothing serves, nothing served"),
        pytest.param(Back(3, True), 5, (3,), (5, 3), None, (), id="the version that served needs no store"),
        pytest.param(None, 5, (), (5, 3), None, (), id="the next lower version does"),
    ],
)
def test_back_to(
    expected: Back | None,
    serving: int | None,
    before: Sequence[int],
    resident: Sequence[int],
    published: Sequence[int] | None,
    quarantined: Sequence[int],
) -> None:
    status = Status(
        model="m",
        store=Path("store"),
        serving=None if serving is None else version(serving),
        before=tuple(before),
        resident=tuple(resident),
        quarantined=tuple(Quarantined(number=number, reason="NaN", since=0.0) for number in quarantined),
    )
    assert status.back_among(published) == expected


@pytest.mark.parametrize(
    ("published", "quarantined", "count", "expected"),
    [
        ([], {}, 2, []),
        ([1, 2, 3], {}, 2, [3, 2]),
        ([1, 2, 3], {3: BAD}, 2, [2, 1]),
        ([1, 2, 3], {2: BAD}, 2, [3, 1]),
        ([1, 2, 3], {3: "other files"}, 2, [3, 2]),
        ([0, 1], {}, 2, [1, 0]),
    ],
)
def test_newest(published: list[int], quarantined: Mapping[int, str], count: int, expected: list[int]) -> None:
    found = newest([one(number) for number in published], quarantined=quarantined, count=count)
    assert [candidate.number for candidate in found] == expected
