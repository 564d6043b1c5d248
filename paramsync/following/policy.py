"""Which version to restore, and which ones served before. Pure: no clock, disk or thread; the standard library only."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from paramsync.version import Candidate, V

MOST_BEFORE = 16  # versions that served before which a rollback knows of


def next_restore(
    published: Sequence[Candidate[V]],
    *,
    serving: Candidate[V] | None,
    quarantined: Mapping[int, Hashable],
    pinned: int | None,
) -> Candidate[V] | None:
    """The version to restore now; None to stay with what serves.

    `published` ascends and ends with the latest. `quarantined` maps the number of each version that could not be used
    to the files it had then: it is passed over for as long as it has them. Pinned, only that version counts, but that
    any is better than none while nothing serves. Otherwise it is the newest that is not quarantined, and never one
    older than what serves, unless the store itself started over with lower numbers.
    """
    if pinned is not None:
        wanted = [one for one in published if serving is None and one.number != pinned]
        wanted += [one for one in published if one.number == pinned]
    elif serving is None or (published and published[-1].number < serving.number):
        wanted = list(published)
    else:
        wanted = [one for one in published if one.number >= serving.number]
    for one in reversed(wanted):
        if one.same_as(serving):
            return None
        if one.number not in quarantined or quarantined[one.number] != one.files:
            return one
    return None


def newest(published: Sequence[Candidate[V]], *, quarantined: Mapping[int, Hashable], count: int) -> list[Candidate[V]]:
    """So many of the newest that can be used, the newest first: those to have in memory beside each other."""
    bad = {one.number for one in published if one.number in quarantined and quarantined[one.number] == one.files}
    wanted = usable([one.number for one in published], bad)[:count]
    by_number = {one.number: one for one in published}
    return [by_number[number] for number in wanted]


def usable(published: Collection[int], quarantined: Collection[int]) -> list[int]:
    """The newest first."""
    return sorted({*published} - {*quarantined}, reverse=True)


def served_before(before: Sequence[int], *, left: int | None, now: int, back: bool) -> tuple[int, ...]:
    """The versions that served before `now`, each once, the last one first, after `left` was swapped for it.

    `back` says that a rollback did so: what it went back from, or past, is not gone back to.
    """
    if back:
        return tuple(before[before.index(now) + 1 :]) if now in before else ()
    earlier = before if left is None else (left, *before)
    return tuple(dict.fromkeys(number for number in earlier if number != now))[:MOST_BEFORE]
