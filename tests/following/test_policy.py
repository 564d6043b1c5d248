"""Which version a follower restores, as a table of cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from paramsync.following.policy import newest, next_restore, served_before, stand_in
from paramsync.status import Back, back_to
from paramsync.version import Candidate


@dataclass(frozen=True)
class Numbered:
    number: int


def one(number: int, files: str = "as published") -> Candidate[Numbered]:
    return Candidate(Numbered(number), files)


@dataclass(frozen=True)
class Case:
    name: str
    published: Sequence[Candidate[Numbered]]
    expected: Candidate[Numbered] | None
    serving: Candidate[Numbered] | None = None
    quarantined: Mapping[int, str] | None = None
    pinned: int | None = None
    starts_over: bool = True


BAD = "as published"
CASES = [
    Case("an empty store leaves nothing to restore", [], None),
    Case("the first version is restored", [one(1)], one(1)),
    Case("the newest is restored, others are skipped", [one(1), one(2), one(3)], one(3), serving=one(1)),
    Case("nothing to do where the newest serves", [one(1), one(2)], None, serving=one(2)),
    Case("what serves may be pruned from the store", [one(8), one(9)], one(9), serving=one(3)),
    Case("a store that vanished changes nothing", [], None, serving=one(3)),
    Case(
        "a quarantined newest version leaves the serving one",
        [one(1), one(2)],
        None,
        serving=one(1),
        quarantined={2: BAD},
    ),
    Case("the newest good one is served after a restart", [one(1), one(2), one(3)], one(2), quarantined={3: BAD}),
    Case("a newer good one is taken past a quarantined one", [one(1), one(2), one(3)], one(2), one(1), {3: BAD}),
    Case(
        "nothing older than what serves is taken", [one(1), one(2), one(3)], None, serving=one(2), quarantined={3: BAD}
    ),
    Case(
        "a later version than the quarantined one is taken",
        [one(3), one(4)],
        one(4),
        serving=one(2),
        quarantined={3: BAD},
    ),
    Case("where all are quarantined nothing is restored", [one(1), one(2)], None, quarantined={1: BAD, 2: BAD}),
    Case("a rewritten quarantined version is tried again", [one(2, "mended")], one(2, "mended"), quarantined={2: BAD}),
    Case("a rewritten serving version is taken again", [one(2, "again")], one(2, "again"), serving=one(2)),
    Case(
        "a rewritten bad one leaves the serving one", [one(1), one(2, "x")], None, serving=one(2), quarantined={2: "x"}
    ),
    Case("a store that started over is followed", [one(1), one(2)], one(2), serving=one(900)),
    Case(
        "a store that must not start over is not followed back",
        [one(1), one(2)],
        None,
        serving=one(9),
        starts_over=False,
    ),
    Case("what must not start over is followed on", [one(1), one(10)], one(10), serving=one(9), starts_over=False),
    Case("a pin leads back all the same", [one(1), one(9)], one(1), serving=one(9), pinned=1, starts_over=False),
    Case("in a store that started over bad ones are passed", [one(1), one(2)], one(1), one(900), {2: BAD}),
    Case("a pinned version is restored", [one(1), one(2)], one(1), serving=one(2), pinned=1),
    Case("pinned, newer versions are left alone", [one(1), one(2)], None, serving=one(1), pinned=1),
    Case("a pinned version that is quarantined is not retried", [one(1), one(2)], None, one(2), {1: BAD}, pinned=1),
    Case("a pinned version that is not there leaves what serves", [one(2)], None, serving=one(2), pinned=1),
    Case("pinned to what is nowhere, any is better than none", [one(1), one(2)], one(2), pinned=7),
    Case("pinned to what is nowhere, none that is quarantined", [one(1), one(2)], one(1), None, {2: BAD}, pinned=7),
    Case("pinned to what is quarantined, any is better than none", [one(1), one(2)], one(2), None, {1: BAD}, pinned=1),
    Case(
        "pinned to what is quarantined, older ones come before newer",
        [one(1), one(2), one(3)],
        one(1),
        None,
        {2: BAD},
        2,
    ),
    Case("pinned to what is quarantined, the nearest older one", [one(1), one(2), one(4)], one(2), None, {3: BAD}, 3),
    Case("what is pinned comes before what is newer", [one(1), one(2)], one(1), pinned=1),
    Case("what is pinned comes before what is older", [one(1), one(2), one(3)], one(3), pinned=3),
    Case("number 0 is a version like any other", [one(0)], one(0)),
    Case("pinned to number 0", [one(0), one(1)], one(0), serving=one(1), pinned=0),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_next_restore(case: Case) -> None:
    found = next_restore(
        case.published,
        serving=case.serving,
        quarantined=case.quarantined or {},
        pinned=case.pinned,
        starts_over=case.starts_over,
    )
    assert found == case.expected


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


@dataclass(frozen=True)
class Swaps:
    """What came to serve, in this order; a rollback to it is a negative number."""

    name: str
    swaps: Sequence[int]
    expected: tuple[int, ...]


HISTORIES = [
    Swaps("nothing served before the first", [1], ()),
    Swaps("what served last comes first", [1, 2, 3], (2, 1)),
    Swaps("a rewritten version was not before itself", [1, 2, 2], (1,)),
    Swaps("a version pinned and left again is there once", [1, 2, 3, 2, 3], (2, 1)),
    Swaps("what serves is not before itself", [1, 2, 3, 1], (3, 2)),
    Swaps("a rollback leaves nothing to go back to", [1, 2, 3, -2], (1,)),
    Swaps("two rollbacks go back twice", [1, 2, 3, 2, 3, -2, -1], ()),
    Swaps("what was rolled back from is known once it served again", [1, 2, 3, -2, 3], (2, 1)),
    Swaps("a rollback past what is gone leaves that out", [1, 2, 3, 4, -2], (1,)),
    Swaps("a rollback to what never served leaves nothing", [5, 7, 9, -3], ()),
    Swaps("a store that started over goes on", [7, 1, 2], (1, 7)),
    Swaps("number 0 is a version like any other", [0, 1, 2], (1, 0)),
    Swaps("it does not grow for ever", range(100), tuple(range(98, 82, -1))),
]


@pytest.mark.parametrize("case", HISTORIES, ids=lambda case: case.name)
def test_served_before(case: Swaps) -> None:
    before: tuple[int, ...] = ()
    serving: int | None = None
    for swap in case.swaps:
        before, serving = served_before(before, left=serving, now=abs(swap), back=swap < 0), abs(swap)
    assert before == case.expected


@dataclass(frozen=True, kw_only=True)
class Return:
    name: str
    expected: Back | None
    serving: int | None = 5
    before: Sequence[int] = ()
    resident: Sequence[int] = (5,)
    published: Sequence[int] | None = (1, 2, 3, 4, 5)
    quarantined: Sequence[int] = ()


RETURNS = [
    Return(name="what served before is gone back to", before=(3, 1), expected=Back(3, True)),
    Return(name="also a newer one", before=(9, 1), resident=(5, 9), expected=Back(9, True)),
    Return(name="what is gone is passed over", before=(0, 1), expected=Back(1, True)),
    Return(name="what cannot be used is passed over", before=(3, 1), quarantined=(3,), expected=Back(1, True)),
    Return(
        name="what is in memory can be used", before=(3,), resident=(5, 3), quarantined=(3,), expected=Back(3, True)
    ),
    Return(name="without a history the next lower one is", expected=Back(4, False)),
    Return(name="without a bad one", quarantined=(4, 3), expected=Back(2, False)),
    Return(name="below the lowest is nothing", serving=1, resident=(1,), expected=None),
    Return(name="nothing serves, nothing served", serving=None, resident=(), expected=None),
    Return(
        name="what served goes without the store", before=(3,), resident=(5, 3), published=None, expected=Back(3, True)
    ),
    Return(name="the next lower one does not", resident=(5, 3), published=None, expected=None),
]


@pytest.mark.parametrize("case", RETURNS, ids=lambda case: case.name)
def test_back_to(case: Return) -> None:
    found = back_to(
        case.serving,
        case.before,
        resident=case.resident,
        published=case.published,
        quarantined=case.quarantined,
    )
    assert found == case.expected


@pytest.mark.parametrize(
    ("published", "quarantined", "count", "expected"),
    [
        ([], {}, 2, []),
        ([1, 2, 3], {}, 2, [3, 2]),
        ([1], {}, 2, [1]),
        ([1, 2, 3], {}, 1, [3]),
        ([1, 2, 3], {3: BAD}, 2, [2, 1]),
        ([1, 2, 3], {2: BAD}, 2, [3, 1]),
        ([1, 2, 3], {3: "other files"}, 2, [3, 2]),
        ([1, 2], {1: BAD, 2: BAD}, 2, []),
        ([0, 1], {}, 2, [1, 0]),
    ],
)
def test_newest(published: list[int], quarantined: Mapping[int, str], count: int, expected: list[int]) -> None:
    found = newest([one(number) for number in published], quarantined=quarantined, count=count)
    assert [candidate.number for candidate in found] == expected
