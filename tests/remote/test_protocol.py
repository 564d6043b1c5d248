"""The protocol, simulated: publishers that stop and wake, an operator, a collector, over a bucket that loses answers,
applies writes late, and refuses. Seeded and single-threaded: a seed that fails shows its history again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from paramsync.errors import EmptiedError, FencedError
from paramsync.remote import protocol, state
from paramsync.remote.protocol import Answer, Answered, Create, Delete, Found, Held, Operation, Read, Replace, Steps
from paramsync.remote.state import Listed, State

RUN = "a" * 32
KEEP = 2


def nonce(chance: random.Random) -> str:
    return f"{chance.getrandbits(128):032x}"


@dataclass
class Bucket:
    """A state object with compare-and-swap, and names of data. `history` has every state that was ever written."""

    chance: random.Random
    faults: float = 0.3
    content: bytes | None = None
    tags: int = 0
    data: set[str] = field(default_factory=set)
    late: list[Operation] = field(default_factory=list)
    history: list[State] = field(default_factory=list)

    def answer(self, operation: Operation) -> Answered:
        """Apply the operation now, later or never, and answer truly or not at all."""
        if self.late and self.chance.random() < 0.5:
            self._apply(self.late.pop(self.chance.randrange(len(self.late))))
        fault = self.chance.random()
        if isinstance(operation, Read):
            return self._apply(operation)
        if fault < self.faults / 3:  # lost on the way there
            return Answer.UNKNOWN
        if fault < 2 * self.faults / 3:  # on its way for a long time
            self.late.append(operation)
            return Answer.UNKNOWN
        answer = self._apply(operation)
        return Answer.UNKNOWN if fault < self.faults else answer  # the answer is lost on the way back

    def _apply(self, operation: Operation) -> Answered:
        if isinstance(operation, Delete):
            self.data.discard(operation.name)
            self._check()
            return Answer.DONE
        if isinstance(operation, Read):
            return Answer.MISSING if self.content is None else Found(self.content, str(self.tags))
        is_met = self.content is None if isinstance(operation, Create) else operation.tag == str(self.tags)
        if not is_met or (isinstance(operation, Replace) and self.content is None):
            return Answer.REFUSED
        self.content = operation.content
        self.tags += 1
        self.history.append(state.from_json(operation.content))
        self._check()
        return protocol.Written(str(self.tags))

    def _check(self) -> None:
        """Every object that the state needs is there; states go forward."""
        current = self.history[-1]
        assert current.live <= self.data, "an object that a version needs is missing"
        for before, after in zip(self.history, self.history[1:], strict=False):
            assert before.sequence < after.sequence
            assert before.epoch <= after.epoch


class Publisher:
    """Publishes one version after another as `steps`, until somebody fences it off."""

    def __init__(self, bucket: Bucket, chance: random.Random) -> None:
        self.bucket, self.chance = bucket, chance
        self.acknowledged: list[int] = []
        self.epoch = 0

    def steps(self) -> Steps[None]:
        held = yield from protocol.take_over(RUN, nonce(self.chance))
        self.epoch = held.state.epoch
        swept: frozenset[str] = frozenset()
        old: frozenset[str] = frozenset()  # condemned a whole round ago
        while True:
            newest = held.state.newest
            number = 1 if newest is None else newest.number + 1
            version = Listed(number, f"versions/{self.epoch}/{number}", "0" * 64)
            needed = [f"data/{self.epoch}/{at}" for at in range(max(1, number - 2), number + 1)]
            needed = [name for name in needed if name in held.state.objects or name.endswith(f"/{number}")]
            self.bucket.data.update((version.manifest, *needed))  # data before state
            change = protocol.listing(version, needed, KEEP, swept)
            held = yield from protocol.commit(held, change, nonce(self.chance))
            self.acknowledged.append(number)
            swept = yield from protocol.sweep(held, old)
            old = frozenset(held.state.condemned)


def operator(chance: random.Random, choice: int) -> Steps[State]:
    return protocol.choose(lambda state: {**state.choices, f"pin{choice}": choice}, nonce(chance))


def drive(bucket: Bucket, chance: random.Random, rounds: int) -> tuple[list[Publisher], list[int]]:
    """Publishers and an operator, in a random order, each stopped for any time between any two operations."""
    publishers: list[Publisher] = []
    running: list[tuple[object, Iterator[Operation], list[Answered | None]]] = []
    chosen: list[int] = []
    for step in range(rounds):
        if step % 25 == 0:
            publishers.append(Publisher(bucket, chance))
            running.append((publishers[-1], publishers[-1].steps(), [None]))
        if step % 40 == 20:
            running.append((step, operator(chance, step), [None]))
        who, steps, answer = running[chance.randrange(len(running))]
        try:
            operation = steps.send(answer[0])  # type: ignore[attr-defined]
        except StopIteration:
            running.remove((who, steps, answer))
            if isinstance(who, int):
                chosen.append(who)
        except FencedError:
            running.remove((who, steps, answer))
        except EmptiedError:  # only an operator, before there is a state
            assert isinstance(who, int)
            running.remove((who, steps, answer))
        else:
            answer[0] = bucket.answer(operation)
    return publishers, chosen


@pytest.mark.parametrize("block", range(8))
def test_acknowledged_versions_are_listed_and_no_needed_object_is_ever_deleted(block: int) -> None:
    fenced = committed = 0
    for seed in range(block * 100, block * 100 + 100):
        chance = random.Random(seed)
        bucket = Bucket(chance)
        publishers, chosen = drive(bucket, chance, 200)
        assert all(f"pin{choice}" in bucket.history[-1].choices for choice in chosen), f"seed {seed}: a choice was lost"
        listed = {(version.number, version.manifest) for one in bucket.history for version in one.versions}
        for publisher in publishers:
            for number in publisher.acknowledged:
                assert (number, f"versions/{publisher.epoch}/{number}") in listed, f"seed {seed}: version {number}"
        newest = [one.newest.number for one in bucket.history if one.newest]
        assert newest == sorted(newest), f"seed {seed}: the newest version went back"
        committed += len(newest)
        fenced += len({one.epoch for one in bucket.history}) > 1
    assert committed > 500
    assert fenced > 50


def finish(steps: Steps[None], operation: Operation, bucket: Bucket) -> None:
    while True:
        operation = steps.send(bucket.answer(operation))


def test_a_publisher_that_wakes_up_after_its_successor_began_commits_and_deletes_nothing() -> None:
    chance = random.Random(1)
    bucket = Bucket(chance, faults=0.0)
    first = Publisher(bucket, chance)
    steps = first.steps()
    operation = next(steps)
    while len(first.acknowledged) < 4:
        operation = steps.send(bucket.answer(operation))
    second = Publisher(bucket, chance)
    others = second.steps()
    later = next(others)
    while len(second.acknowledged) < 4:
        later = others.send(bucket.answer(later))
    data, history = set(bucket.data), list(bucket.history)
    with pytest.raises(FencedError):
        finish(steps, operation, bucket)
    assert bucket.history == history
    assert bucket.history[-1].live <= bucket.data
    assert data - bucket.data <= set(history[-1].condemned) | {name for one in history for name in one.condemned}


def test_a_lost_answer_of_a_commit_is_recognised_by_its_nonce() -> None:
    held = Held(State(RUN, 1, 1, "b" * 32, "b" * 32), "1")
    steps = protocol.commit(held, lambda state: state, "c" * 32)
    wrote = next(steps)
    assert isinstance(wrote, Replace)
    assert steps.send(Answer.UNKNOWN) == Read()
    with pytest.raises(StopIteration) as ended:
        steps.send(Found(wrote.content, "2"))
    assert ended.value.value == Held(state.from_json(wrote.content), "2")


def test_a_commit_keeps_what_an_operator_chose_meanwhile() -> None:
    mine = State(RUN, 1, 1, "b" * 32, "b" * 32)
    steps = protocol.commit(Held(mine, "1"), lambda state: state, "c" * 32)
    next(steps)
    steps.send(Answer.REFUSED)
    again = steps.send(Found(mine.choose("d" * 32, {"pin": 7}).to_json(), "2"))
    assert isinstance(again, Replace)
    assert again.tag == "2"
    assert state.from_json(again.content).choices == {"pin": 7}


def test_a_missing_state_is_never_a_fresh_start_for_somebody_who_has_seen_one() -> None:
    steps = protocol.take_over(RUN, "b" * 32, seen=(RUN, 1))
    next(steps)
    with pytest.raises(EmptiedError):
        steps.send(Answer.MISSING)


@pytest.mark.parametrize(("run", "epoch"), [(RUN, 3), ("e" * 32, 2)])
def test_a_publisher_whose_process_died_does_not_take_the_bucket_back_from_its_successor(run: str, epoch: int) -> None:
    current = State(run=run, epoch=epoch, sequence=9, nonce="c" * 32, committed="c" * 32)
    steps = protocol.take_over(RUN, "b" * 32, seen=(RUN, 2))
    next(steps)
    with pytest.raises(FencedError):
        steps.send(Found(current.to_json(), "1"))


def test_a_publisher_whose_process_died_before_it_reported_its_epoch_goes_on_with_it() -> None:
    current = State(run=RUN, epoch=3, sequence=9, nonce="b" * 32, committed="b" * 32)
    steps = protocol.take_over(RUN, "b" * 32, seen=(RUN, 2))
    next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send(Found(current.to_json(), "1"))
    assert ended.value.value.state == current
