"""The protocol for changing the state object of a bucket. Pure: it yields operations, and the caller sends answers.

A publisher that starts raises the epoch **before** it uploads anything: this is the fence. Each commit then replaces
the state that the publisher wrote last. If the operation is refused or its answer is lost, the publisher reads the
state, which shows what happened:

    its own nonce                committed, and only the answer was lost; operators' writes keep this nonce
    another run, a later epoch   fenced: another publisher has begun, and this one stops
    the same epoch               nothing was written, or an operator made a choice: keep the choice, and try again
    an older state               somebody restored a backup: commit the publisher's own state, with the backup's choices
    no state                     somebody emptied the bucket: an error, never a fresh start

An object that no version needs any more is condemned first: the state lists its name, and it is deleted a grace period
later. The protocol needs no clock and no lease.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
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
    UNKNOWN = "unknown"  # no usable answer: the operation may have been done or not
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Found:
    """The content of the state object, its tag, and the time of its last write by the server's clock, to the second."""

    content: bytes
    tag: str
    written_at: float | None = field(default=None, compare=False)


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
"""All nonces of a publisher begin with the same WHO characters, which identify its writes.

The epoch does not identify them, because an epoch can occur twice after somebody restores a backup.
"""

Operation: TypeAlias = Read | Create | Replace | Delete
Answered: TypeAlias = Found | Written | Answer
T = TypeVar("T")
Steps: TypeAlias = Generator[Operation, Answered, T]


def read() -> Steps[Held | None]:
    """Return the state in the bucket; None if there is none. Raises RemoteError for a malformed state."""
    while True:
        answer = yield Read()
        if isinstance(answer, Found):
            return Held(states.from_json(answer.content), answer.tag)
        if answer is Answer.MISSING:
            return None


def take_over(run: str, nonce: str, *, seen: tuple[str, int] | None = None) -> Steps[Held]:
    """Begin the next epoch. If the bucket has no state, create one for the new training run `run`.

    `seen` is the run and epoch of an earlier process of this publisher. Without `seen`, the first state that is read
    here counts as seen. Raises EmptiedError if the seen state is gone, and FencedError if another publisher has begun
    since. A publisher that was stopped in this function for a day therefore does not fence off its successor.
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
            mine = held.state.commit(nonce, epoch=epoch + 1, ended="")
            answer = yield Replace(mine.to_json(), held.tag)
        if isinstance(answer, Written):
            return Held(mine, answer.tag)


def commit(held: Held, change: Callable[[State], State], nonce: str) -> Steps[Held]:
    """Replace the state by `change(state)`. Choices that operators make meanwhile are kept.

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
    """Return the state that the next commit changes: `current`, unless it is older because somebody restored a backup.

    In that case the result is `mine` with the choices of `current`: nothing else in an old backup can be new.
    """
    numbers = [state.newest.number if state.newest else -1 for state in (mine, current)]
    if current.epoch == mine.epoch and numbers[0] <= numbers[1]:
        return current
    return replace(mine, sequence=max(mine.sequence, current.sequence), choices=current.choices)


def choose(choice: Callable[[State], Mapping[str, Any]], nonce: str) -> Steps[State]:
    """Replace the operators' choices by what `choice` returns for the current state.

    Writes nothing if the state has these choices already. Raises EmptiedError if there is no state.
    """
    choices: Mapping[str, Any] | None = None
    while True:
        held = yield from read()
        if held is None:
            raise EmptiedError
        if held.state.choices == choices:  # our write was done; calling `choice` again could roll back twice
            return held.state
        choices = choice(held.state)
        if choices == held.state.choices:
            return held.state
        mine = held.state.choose(nonce, choices)
        answer = yield Replace(mine.to_json(), held.tag)
        if isinstance(answer, Written):
            return mine


def sweep(held: Held, names: frozenset[str]) -> Steps[frozenset[str]]:
    """Delete the objects with these names that the current state still condemns. Returns the names of deleted objects.

    Condemned names are never used again, because every publisher makes new names from its own epoch. Even a publisher
    that was stopped in this function for a day therefore deletes nothing that a version needs. Raises EmptiedError,
    FencedError.
    """
    current = yield from read()
    if current is None:
        raise EmptiedError
    check_fence(held.state, current.state)
    deleted = set()
    for name in sorted(names.intersection(current.state.condemned)):
        if (yield Delete(name)) not in (Answer.DONE, Answer.MISSING):
            break  # the next sweep deletes the rest: a new version should not wait for retries here
        deleted.add(name)
    return frozenset(deleted)


def condemn(nonce: str, *, add: Set[str] = frozenset(), remove: Set[str] = frozenset()) -> Steps[Held]:
    """For an operator: condemn those names of `add` that no version needs, and stop listing the names of `remove`.

    Publishers keep these changes. Writes nothing if the state has them already. Raises EmptiedError without a state.
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
    """Whether another publisher began later and wrote this state. A lower epoch of the run comes from an old backup."""
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
    """Make the change that lists a version as the newest. `needed` has the names of the version's objects.

    The change keeps the `keep` newest versions and the versions that operators chose, and drops the others. It condemns
    the objects that no kept version needs, and the `orphans`, which no state has named yet. It takes out the `swept`
    names, whose objects are deleted.
    """
    names = tuple(needed)

    def change(state: State) -> State:
        chosen = state.chosen
        before = (*[old for old in state.versions if old.number < version.number], version)
        versions = (*[old for old in before[:-keep] if old.number in chosen], *before[-keep:])
        needs = {name: (state.objects.get(name, (version.number, 0))[0], version.number) for name in names}
        objects = {
            name: (first, last)
            for name, (first, last) in {**state.objects, **needs}.items()
            if any(first <= listed.number <= last for listed in versions)
        }
        after = replace(state, versions=versions, objects=objects, ended="")
        condemned = {*state.condemned, *((state.live | orphans) - after.live)} - swept
        return replace(after, condemned=tuple(sorted(condemned)))

    return change


def is_older(state: State, epoch: int, sequence: int) -> bool:
    """Whether a state is older than the epoch and sequence that a follower has seen. Followers ignore older states."""
    return (state.epoch, state.sequence) < (epoch, sequence)
