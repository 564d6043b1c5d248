"""The protocol of a bucket, simulated: publishers that stop, wake, die and start again, operators, followers, and an
object store that loses, delays and repeats. Single-threaded, with a virtual clock; the bytes of a schedule decide it.

`python -m tests.hostile.campaigns.schedules FIRST COUNT [--restored]` runs the schedules of these seeds, and prints the
history of the first that breaks a promise, shortened.
"""

from __future__ import annotations

import json
import operator
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from unittest import mock

from paramsync.errors import EmptiedError, FencedError, RemoteError, RequestError
from paramsync.remote import fleet, protocol, state
from paramsync.remote.protocol import Answer, Answered, Create, Delete, Found, Operation, Read, Replace, Written
from paramsync.remote.state import Listed, State

RUN = "a" * 32
KEEP = 2
GRACE = 60  # ticks of the virtual clock, which goes on by one with each operation
LENGTH = 500  # bytes of a schedule
_TAIL = 400  # rounds of operations in the end, without faults: a version may take so long
_ADDRESS = "s3://bucket/m"


@dataclass(frozen=True, slots=True)
class Put:
    """Write objects of data."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Get:
    """Read an object of data."""

    name: str


Step: TypeAlias = Operation | Put | Get
Steps: TypeAlias = Generator[Step, Answered, None]


class Draws:
    """The decisions of a schedule. After its last byte, all are 0, which harms nobody: so a shorter one is simpler."""

    def __init__(self, schedule: bytes) -> None:
        self._left: Iterator[int] = iter(schedule)
        self.is_over = False

    def below(self, count: int) -> int:
        found = next(self._left, None)
        self.is_over = found is None
        return (found or 0) % count


class Bucket:
    """A state object with compare-and-swap, and names of data."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.now = 0
        self.content: bytes | None = None
        self.data: set[str] = set()
        self.history: list[State] = []
        self.listed: set[Listed] = set()
        self.counts: Counter[str] = Counter()
        self.is_restored = False
        """Whether somebody put an older state back, after which objects that it names may be gone."""
        self._tag = 0
        self._late: list[Operation] = []

    @property
    def state(self) -> State:
        return self.history[-1]

    def answer(self, operation: Step) -> Answered:
        """Apply the operation now, later or never, and answer truly or not at all."""
        self.now += 1
        if self._late and self.draws.below(4) == 1:
            self._apply(self._late.pop(self.draws.below(len(self._late))))
        if isinstance(operation, Put):
            self.data |= operation.names
            return Answer.DONE
        if isinstance(operation, Get):
            return Answer.DONE if operation.name in self.data else Answer.MISSING
        fault = self.draws.below(12)
        if fault == 11 or (fault == 10 and isinstance(operation, Read)):
            self.counts["requests lost"] += 1
            return Answer.UNKNOWN
        if fault == 10:
            self.counts["requests late"] += 1
            self._late.append(operation)
            return Answer.UNKNOWN
        answer = self._apply(operation)
        if fault == 9:
            self.counts["answers lost"] += 1
            return Answer.UNKNOWN
        if fault == 8 and isinstance(answer, Written):  # a server that tries again within, and then refuses
            self.counts["answers wrong"] += 1
            return Answer.REFUSED
        return answer

    def _apply(self, operation: Operation) -> Answered:
        if isinstance(operation, Delete):
            assert self.is_restored or operation.name not in self.state.live, f"{operation.name} is deleted, and needed"
            self.counts["deletions"] += operation.name in self.data
            self.data.discard(operation.name)
            return Answer.DONE
        if isinstance(operation, Read):
            return Answer.MISSING if self.content is None else Found(self.content, str(self._tag))
        if isinstance(operation, Create):
            is_met = self.content is None
        else:
            is_met = self.content is not None and operation.tag == str(self._tag)
        if not is_met:
            return Answer.REFUSED
        self.write(operation.content)
        return Written(str(self._tag))

    def write(self, content: bytes) -> None:
        after = state.from_json(content)
        if self.history and not self.is_restored:
            before = self.state
            assert (before.epoch, before.sequence) < (after.epoch, after.sequence), "a state is no later than the last"
            assert _number(before) <= _number(after), "the newest version went back"
        if not self.is_restored:
            assert after.live <= self.data, f"{min(after.live - self.data)} is needed, and missing"
        self.content = content
        self._tag += 1
        self.history.append(after)
        self.listed.update(after.versions)
        self.counts["states"] += 1


def _number(state: State) -> int:
    return 0 if state.newest is None else state.newest.number


class Publisher:
    """Publishes one version after another until it is fenced off. Its process may die, and start again."""

    def __init__(self, bucket: Bucket, index: int) -> None:
        self.bucket, self.name = bucket, f"publisher {index}"
        self.acknowledged: list[int] = []
        self.seen: tuple[str, int] | None = None
        self._index, self._nonces = index, 0
        self._claim = self._nonce()
        self._number = 0

    def _nonce(self) -> str:
        self._nonces += 1
        return f"{self._index:016x}{self._nonces:016x}"

    def steps(self) -> Steps:
        held = None
        while held is None:
            with suppress(ConnectionError):
                held = yield from protocol.take_over(RUN, self._claim, seen=self.seen)
        self.seen = held.state.run, held.state.epoch
        epoch, since, swept, orphans = held.state.epoch, dict[str, int](), frozenset[str](), set[str]()
        while True:
            names = frozenset(held.state.condemned) - swept
            since = {name: since.get(name, self.bucket.now) for name in names}
            try:
                if due := frozenset(name for name in names if self.bucket.now - since[name] >= GRACE):
                    swept |= yield from protocol.sweep(held, due)
                late = f"whole/{epoch}/{self._number}"
                orphans.add(late)
                yield Put(frozenset((late,)))  # after the commit that it belongs to; the next one names it
                self._number = number = max(self._number, _number(held.state)) + 1
                version = Listed(number, f"versions/{epoch}/{number}", "0" * 64)
                needed = [f"data/{epoch}/{at}" for at in range(max(1, number - 2), number + 1)]
                needed = [name for name in needed if name in held.state.objects or name.endswith(f"/{number}")]
                orphans.update((version.manifest, *needed))
                yield Put(frozenset((version.manifest, needed[-1])))
                needed.append(late)
                change = protocol.listing(version, needed, KEEP, swept, frozenset(orphans))
                held = yield from protocol.commit(held, change, self._nonce())
            except ConnectionError:  # nobody knows how far this came
                continue
            assert version in self.bucket.listed, f"version {number} is acknowledged, and was never listed"
            swept = frozenset()
            orphans.clear()
            self.acknowledged.append(number)
            self.bucket.counts["versions"] += 1


class Operator:
    """Makes one choice for all followers."""

    def __init__(self, bucket: Bucket, index: int, draws: Draws) -> None:
        self.bucket, self.name = bucket, f"operator {index}"
        number = _number(bucket.state) if bucket.history else 1
        self._choice = [
            fleet.label(_ADDRESS, f"label-{index}", number),
            fleet.pin(_ADDRESS, number),
            fleet.pin(_ADDRESS, None),
            fleet.roll_back(_ADDRESS),
        ][draws.below(4)]
        self.nonce = f"{index:016x}{0:016x}"

    def steps(self) -> Steps:
        try:
            yield from protocol.choose(self._choice, self.nonce)
        except (RequestError, RemoteError):  # the version is gone, or there is none before it
            return
        self.bucket.counts["choices"] += 1


class Collector:
    """An operator who deletes, once, what no version needs, as `paramsync gc` does."""

    def __init__(self, bucket: Bucket, index: int) -> None:
        self.bucket, self.name, self._index = bucket, f"collector {index}", index

    def steps(self) -> Steps:
        held = yield from protocol.read()
        if held is None:
            return
        first = held.state
        earlier = {name for name in self.bucket.data if int(name.split("/")[1]) < first.epoch}
        orphans = earlier - first.live.union(first.condemned)
        held = yield from protocol.condemn(f"{self._index:032x}", add=orphans)
        if (held.state.run, held.state.epoch) != (first.run, first.epoch):
            return
        begun = self.bucket.now
        while self.bucket.now - begun < GRACE:
            yield Read()
        gone = yield from protocol.sweep(held, frozenset(orphans.union(first.condemned)))
        yield from protocol.condemn(f"{self._index:031x}f", remove=gone)
        self.bucket.counts["collections"] += 1


class Follower:
    """Fetches the newest or pinned version object by object. Its process may die: it keeps its version and its note."""

    def __init__(self, bucket: Bucket, index: int) -> None:
        self.bucket, self.name = bucket, f"follower {index}"
        self.number = 0
        self._note = "", 0, 0

    def steps(self) -> Steps:
        while True:
            read_at = self.bucket.now
            answer = yield Read()
            if not isinstance(answer, Found):
                continue
            current = state.from_json(answer.content)
            run, *last = self._note
            if run not in ("", current.run) or protocol.is_older(current, *last):
                assert self.bucket.is_restored, "a state is refused"
                self.bucket.counts["refusals"] += 1
                continue
            self._note = current.run, current.epoch, current.sequence
            wanted = current.wanted
            if wanted is None or wanted.number <= self.number:
                continue
            names = [name for name, (first, last) in current.objects.items() if first <= wanted.number <= last]
            for name in (wanted.manifest, *names):
                if (yield Get(name)) is Answer.MISSING:
                    is_late = self.bucket.now - read_at >= GRACE
                    assert is_late or self.bucket.is_restored, f"{name} is gone within the grace period"
                    self.bucket.counts["gone"] += 1
                    break
            else:
                assert wanted.number > self.number, "a follower went back"
                self.number = wanted.number
                self.bucket.counts["fetched"] += 1


Actor: TypeAlias = Publisher | Operator | Collector | Follower


@dataclass
class World:
    """Everything that a schedule drives."""

    draws: Draws
    log: list[str] | None = None
    bucket: Bucket = field(init=False)
    actors: list[Actor] = field(default_factory=list)
    running: dict[str, tuple[Steps, Answered | None]] = field(default_factory=dict)
    fenced: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.bucket = Bucket(self.draws)

    def add(self, kind: Callable[..., Actor], *arguments: Any) -> None:
        actor = kind(self.bucket, len(self.actors), *arguments)
        self.actors.append(actor)
        self.begin(actor)

    def begin(self, actor: Actor) -> None:
        self._say(actor, "begins")
        self.running[actor.name] = actor.steps(), None

    def step(self, actor: Actor, error: Exception | None = None) -> None:
        """Have an actor do its next operation, or be told of an error in place of an answer."""
        if actor.name not in self.running:
            return
        steps, answer = self.running[actor.name]
        try:
            operation = steps.send(answer) if error is None or answer is None else steps.throw(error)  # type: ignore[arg-type]
        except StopIteration:
            del self.running[actor.name]
        except (FencedError, EmptiedError) as ended:
            self._say(actor, str(ended))
            assert self.bucket.history or isinstance(actor, (Operator, Collector)), "the bucket is said to be emptied"
            self.fenced.add(actor.name)
            self.bucket.counts["fenced"] += 1
            del self.running[actor.name]
        else:
            found = self.bucket.answer(operation)
            self._say(actor, operation, found)
            self.running[actor.name] = steps, found

    def _say(self, actor: Actor, *words: object) -> None:
        if self.log is not None:
            self.log.append(f"{self.bucket.now:5} {actor.name}: {' -> '.join(map(_shown, words))}")


def _shown(word: object) -> str:
    if isinstance(word, (Create, Replace, Found)):
        found = state.from_json(word.content)
        numbers = [version.number for version in found.versions]
        return f"{type(word).__name__} epoch {found.epoch} sequence {found.sequence} {numbers} {dict(found.choices)}"
    return str(word)


def run(schedule: bytes, *, restored: bool = False, log: list[str] | None = None) -> Counter[str]:
    """Drive a world by a schedule, then to a quiet end. Returns counts; raises AssertionError for a broken promise.

    With `restored`, somebody also puts older states back, as a backup does. Objects may then be missing and followers
    wait, but no follower may go back, and at most one publisher may go on.
    """
    draws = Draws(schedule)
    world = World(draws, log)
    bucket = world.bucket
    world.add(Publisher)
    world.add(Follower)
    while not draws.is_over:
        event = draws.below(48)
        if event < 40:
            world.step(world.actors[event % len(world.actors)])
        elif event == 40:
            world.add(Publisher)
        elif event == 41 and bucket.history:
            world.add(Operator, draws)
        elif event == 42:
            world.add((Follower, Follower, Collector)[draws.below(3)])
        elif event == 43:  # a process dies and starts again
            actor = world.actors[draws.below(len(world.actors))]
            if actor.name in world.running and isinstance(actor, (Publisher, Follower)):
                world.running[actor.name][0].close()
                world.begin(actor)
        elif event in (44, 47):
            bucket.now += draws.below(3) * 10 * GRACE
        elif event == 45:
            actor = world.actors[draws.below(len(world.actors))]
            if isinstance(actor, Publisher) and actor.acknowledged:
                world.step(actor, ConnectionError("nobody answers"))
        elif event == 46 and restored and len(bucket.history) > 1:
            bucket.is_restored = True
            bucket.counts["restored"] += 1
            bucket.write(bucket.history[-1 - draws.below(len(bucket.history))].to_json())
    _end(world)
    return bucket.counts


def _end(world: World) -> None:
    """Let all actors go on without faults until the last publisher has published, and everybody has its version."""
    bucket = world.bucket
    publishers = [actor for actor in world.actors if isinstance(actor, Publisher)]
    before = sum(len(publisher.acknowledged) for publisher in publishers)
    for _ in range(_TAIL):
        for actor in world.actors:
            world.step(actor)
        after = sum(len(publisher.acknowledged) for publisher in publishers)
        is_over = all(publisher.name not in world.running for publisher in publishers)
        if (after > before + 1 or is_over) and not _unfinished(world):  # the first may be from before
            break
    assert not (unfinished := _unfinished(world)), f"{unfinished} is stuck"
    current = bucket.state
    for publisher in publishers:
        is_lost = max(publisher.acknowledged, default=0) > _number(current)
        assert bucket.is_restored or not is_lost, "an acknowledged version is lost"
        is_mine = publisher.seen == (current.run, current.epoch)
        assert is_mine or publisher.name not in world.running, f"{publisher.name} goes on beside another"
    operators = {actor.nonce for actor in world.actors if isinstance(actor, Operator)}
    chosen = [one.nonce for one in bucket.history if one.nonce in operators]
    assert bucket.is_restored or all(map(operator.ne, chosen, chosen[1:])), "a choice was made twice"
    listed = {version.number for version in current.versions}
    assert bucket.is_restored or listed.issuperset(current.labels.values()), "a labelled version is not listed"


def _unfinished(world: World) -> str:
    """Whoever has still to fetch the newest version, to choose, or to stop."""
    current = world.bucket.state
    going_on = [actor.name for actor in world.actors if isinstance(actor, Publisher) and actor.name in world.running]
    if len(going_on) != 1 and not (world.bucket.is_restored and not going_on):
        return " and ".join(going_on) or "every publisher"
    for actor in world.actors:
        if isinstance(actor, Operator) and actor.name in world.running:
            return actor.name
        is_free = not world.bucket.is_restored and current.pinned is None
        if isinstance(actor, Follower) and is_free and actor.number + KEEP < _number(current):
            return actor.name
    return ""


@contextmanager
def by_reference() -> Iterator[None]:
    """Within this context, states are passed by reference in place of JSON, which takes nine tenths of the time."""
    states: list[State] = []

    def to_json(found: State) -> bytes:
        states.append(found)
        return b"%d" % (len(states) - 1)

    with (
        mock.patch.object(State, "to_json", to_json),
        mock.patch.object(state, "from_json", lambda content: states[int(content)]),
    ):
        yield


def schedule_of(seed: int) -> bytes:
    return random.Random(seed).randbytes(LENGTH)


def fault_of(schedule: bytes, *, restored: bool = False, log: list[str] | None = None) -> str:
    """The promise that a schedule breaks; "" for none."""
    try:
        run(schedule, restored=restored, log=log)
    except AssertionError as error:
        return str(error) or "an assertion"
    return ""


def shrink(schedule: bytes, is_faulty: Callable[[bytes], bool]) -> bytes:
    """A short schedule with the same fault: parts that it does without are left out, other decisions made harmless."""
    size = len(schedule) // 2
    while size:
        at = 0
        while at < len(schedule):
            shorter = schedule[:at] + schedule[at + size :]
            if is_faulty(shorter):
                schedule = shorter
            else:
                at += size
        size //= 2
    for at in range(len(schedule)):
        milder = schedule[:at] + b"\0" + schedule[at + 1 :]
        if schedule[at] and is_faulty(milder):
            schedule = milder
    return schedule


def history_of(schedule: bytes, *, restored: bool = False) -> list[str]:
    """What happens in a faulty schedule, once shortened, up to its fault."""
    fault = _kind(fault_of(schedule, restored=restored))
    short = shrink(schedule, lambda shorter: _kind(fault_of(shorter, restored=restored)) == fault)
    log: list[str] = []
    fault = fault_of(short, restored=restored, log=log)
    return [f"{len(short)} bytes: {short.hex()}", *log, fault]


def _kind(fault: str) -> str:
    return re.sub(r"\S*\d\S*", "", fault)


def main(first: str, count: str, *options: str) -> int:
    restored = "--restored" in options
    total: Counter[str] = Counter()
    begun = time.monotonic()
    for seed in range(int(first), int(first) + int(count)):
        with by_reference():
            try:
                total.update(run(schedule_of(seed), restored=restored))
            except AssertionError:
                sys.stdout.write("\n".join((f"seed {seed}", *history_of(schedule_of(seed), restored=restored), "")))
                return 1
        total["schedules"] += 1
        if total["schedules"] % 10_000 == 0 or total["schedules"] == int(count):
            facts = dict(total, per_second=round(total["schedules"] / (time.monotonic() - begun)))
            sys.stdout.write(json.dumps(facts) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
