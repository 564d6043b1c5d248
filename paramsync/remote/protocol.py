"""How the state object of a bucket changes hands. Pure: yields operations on the object, and is sent their answers.

A publisher that starts raises the epoch **before** it uploads anything: this is the fence. Each commit then replaces
the state that the publisher wrote last. A refused or unknown answer decides nothing: the publisher reads the state and
then knows.

    its own nonce            committed: only the answer was lost; operators keep the nonce of the last commit
    another run or epoch     fenced: another publisher has begun, and this one stops
    the same epoch           an operator made a choice: keep it, and try again
    no state                 somebody emptied the bucket: an error, never a fresh start

No clock and no lease takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from paramsync.errors import EmptiedError, FencedError
from paramsync.remote import state as states
from paramsync.remote.state import Listed, State


@dataclass(frozen=True, slots=True)
class Read:
    """Read the state object."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create the state object, unless it exists."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the state object, if it still has this tag."""

    content: bytes
    tag: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object of data."""

    name: str


class Answer(Enum):
    MISSING = "missing"
    REFUSED = "refused"  # a condition of the operation did not hold
    UNKNOWN = "unknown"  # perhaps done, perhaps not
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Found:
    """The content of the state object."""

    content: bytes
    tag: str


@dataclass(frozen=True, slots=True)
class Written:
    """The state object was written, and has this tag."""

    tag: str


@dataclass(frozen=True, slots=True)
class Held:
    """A state that this writer read or wrote, and its tag in the bucket."""

    state: State
    tag: str


WHO = 16
"""Characters of each nonce by which a publisher knows its own writes: an epoch may come twice, by a restored backup."""

Operation: TypeAlias = Read | Create | Replace | Delete
Answered: TypeAlias = Found | Written | Answer
T = TypeVar("T")
Steps: TypeAlias = Generator[Operation, Answered, T]


def read() -> Steps[Held | None]:
    """The state in the bucket; None if there is none. Raises RemoteError for a malformed state."""
    while True:
        answer = yield Read()
        if isinstance(answer, Found):
            return Held(states.from_json(answer.content), answer.tag)
        if answer is Answer.MISSING:
            return None


def take_over(run: str, nonce: str, *, seen: tuple[str, int] | None = None) -> Steps[Held]:
    """Begin the next epoch. `run` is the identity of a run that begins here.

    All nonces of a publisher begin with the same WHO characters. `seen` is the run and the epoch that this publisher
    had before its process was started again, or else found at its first look: it raises EmptiedError if this state is
    gone, FencedError if another publisher has begun since. So a publisher that was stopped in here for a day does not
    fence its successor.
    """
    is_creating, who = False, nonce
    while True:
        held = yield from read()
        if held is None:
            if seen is not None:
                raise EmptiedError
            is_creating = True
            mine = State(run=run, epoch=1, sequence=1, nonce=nonce, committed=nonce)
            answer = yield Create(mine.to_json())
        elif held.state.committed == nonce and (seen is None or seen[1] <= held.state.epoch):
            return held
        elif is_creating or (seen is not None and _is_later(held.state, *seen, who)):
            raise FencedError(0 if seen is None else seen[1], held.state.epoch)
        else:
            epoch = held.state.epoch if seen is None else max(seen[1], held.state.epoch)
            seen, who = (held.state.run, epoch), held.state.committed
            mine = held.state.commit(nonce, epoch=epoch + 1)
            answer = yield Replace(mine.to_json(), held.tag)
        if isinstance(answer, Written):
            return Held(mine, answer.tag)


def commit(held: Held, change: Callable[[State], State], nonce: str) -> Steps[Held]:
    """Replace the state by what `change` makes of it, keeping operators' choices.

    Raises FencedError if another publisher has begun, EmptiedError if the state is gone.
    """
    base = held
    while True:
        mine = change(base.state).commit(nonce)
        answer = yield Replace(mine.to_json(), base.tag)
        if isinstance(answer, Written):
            return Held(mine, answer.tag)
        current = yield from read()
        if current is None:
            raise EmptiedError
        if current.state.committed == nonce:
            return current
        check_fence(held.state, current.state)
        base = Held(_mend(held.state, current.state), current.tag)


def _mend(mine: State, current: State) -> State:
    """The state to commit on: the current one, unless it is older than `mine` because somebody brought it back.

    Only publishers change versions, so a state with older versions has nothing that `mine` lacks but the choices of
    operators.
    """
    numbers = [state.newest.number if state.newest else -1 for state in (mine, current)]
    if current.epoch == mine.epoch and numbers[0] <= numbers[1]:
        return current
    return replace(mine, sequence=max(mine.sequence, current.sequence), choices=current.choices)


def choose(choice: Callable[[State], Mapping[str, Any]], nonce: str) -> Steps[State]:
    """Replace the operators' choices by `choice` of the state; a choice that stands already is not written again.

    Raises EmptiedError if there is no state.
    """
    choices: Mapping[str, Any] | None = None
    while True:
        held = yield from read()
        if held is None:
            raise EmptiedError
        if held.state.choices == choices:  # only the answer was lost: to roll back once more would be wrong
            return held.state
        choices = choice(held.state)
        if choices == held.state.choices:
            return held.state
        mine = held.state.choose(nonce, choices)
        answer = yield Replace(mine.to_json(), held.tag)
        if isinstance(answer, Written):
            return mine


def sweep(held: Held, names: frozenset[str]) -> Steps[frozenset[str]]:
    """Delete the objects of these names, condemned long ago, after another look at the state. Returns their names.

    Names that a later state condemned no more are kept. Condemned names never come back into use: every publisher
    makes new names from its own epoch. So even a publisher that was stopped in here for a day deletes nothing live.
    """
    current = yield from read()
    if current is None:
        raise EmptiedError
    check_fence(held.state, current.state)
    deleted = set()
    for name in sorted(names.intersection(current.state.condemned)):
        if (yield Delete(name)) not in (Answer.DONE, Answer.MISSING):
            break  # the next sweep goes on: a version may wait meanwhile
        deleted.add(name)
    return frozenset(deleted)


def condemn(nonce: str, *, add: Set[str] = frozenset(), remove: Set[str] = frozenset()) -> Steps[Held]:
    """Condemn names that no version needs, and take deleted names out, for an operator. Publishers keep both.

    A state that has the names so is not written again. Raises EmptiedError if there is no state.
    """
    while True:
        held = yield from read()
        if held is None:
            raise EmptiedError
        before = frozenset(held.state.condemned)
        after = (before | (add - held.state.live)) - remove
        if after == before:
            return held
        condemned = tuple(sorted(after))
        mine = replace(held.state, sequence=held.state.sequence + 1, nonce=nonce, condemned=condemned)
        answer = yield Replace(mine.to_json(), held.tag)
        if isinstance(answer, Written):
            return Held(mine, answer.tag)


def check_fence(mine: State, current: State) -> None:
    """Raise FencedError if another publisher has begun since this publisher wrote `mine`."""
    if _is_later(current, mine.run, mine.epoch, mine.committed):
        raise FencedError(mine.epoch, current.epoch)


def _is_later(state: State, run: str, epoch: int, who: str) -> bool:
    """Whether a state is of a publisher that began later. A lower epoch is only brought back, by a restored backup."""
    if state.run != run or state.epoch != epoch:
        return state.run != run or state.epoch > epoch
    return state.committed[:WHO] != who[:WHO]


def listing(
    version: Listed,
    needed: Iterable[str],
    keep: int,
    swept: frozenset[str] = frozenset(),
    orphans: frozenset[str] = frozenset(),
) -> Callable[[State], State]:
    """The change that lists a version, which needs these objects, as the newest.

    Keeps the `keep` newest versions and the versions that operators chose, and drops the others. Condemns the objects
    that no kept version needs, and the `orphans`, which no state ever named. `swept` names are deleted already, and no
    longer condemned.
    """
    names = tuple(needed)

    def change(state: State) -> State:
        chosen = {state.pinned, *state.labels.values()}
        before = (*[old for old in state.versions if old.number < version.number], version)
        versions = (*[old for old in before[:-keep] if old.number in chosen], *before[-keep:])
        needs = {name: (state.objects.get(name, (version.number, 0))[0], version.number) for name in names}
        objects = {
            name: (first, last)
            for name, (first, last) in {**state.objects, **needs}.items()
            if any(first <= listed.number <= last for listed in versions)
        }
        after = replace(state, versions=versions, objects=objects)
        condemned = {*state.condemned, *((state.live | orphans) - after.live)} - swept
        return replace(after, condemned=tuple(sorted(condemned)))

    return change


def is_older(state: State, epoch: int, sequence: int) -> bool:
    """Whether a follower that has seen a later state must ignore this state, which somebody brought back."""
    return (state.epoch, state.sequence) < (epoch, sequence)
