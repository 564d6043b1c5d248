"""Work on several threads is all done when the call returns, or its error is raised."""

from __future__ import annotations

import _thread
import signal
import threading
from functools import partial

import pytest

from paramsync.checkpoint import tensor_bytes
from tests.support.programs import eventually

_LONG = 10.0


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_every_item_is_worked_on_once(threads: int) -> None:
    done: list[int] = []
    tensor_bytes.each(done.append, range(1, 1000), threads=threads)
    assert sorted(done) == list(range(1, 1000))


def test_the_threads_work_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=10)

    def meet(_: int) -> None:
        together.wait()

    tensor_bytes.each(meet, range(1, 4), threads=3)


def test_without_threads_the_caller_does_all_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", no_thread)
    done: list[int] = []
    tensor_bytes.each(done.append, range(100), threads=4)
    assert done == list(range(100))


def test_an_error_is_raised_and_the_threads_are_gone() -> None:
    def divide(item: int) -> None:
        assert 1 // item != 7

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        tensor_bytes.each(divide, range(-5, 5), threads=4)
    assert threading.active_count() == before


def test_interrupts_again_and_again_leave_no_thread_at_work() -> None:
    at_work, going_on = threading.Semaphore(0), threading.Event()
    done: list[int] = []
    interrupts: list[int] = []

    def work(item: int) -> None:
        at_work.release()
        assert going_on.wait(_LONG)
        done.append(item)

    def interrupt(number: int, frame: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    def later_than(seen: int) -> bool:
        return len(interrupts) > seen

    def interrupt_thrice() -> None:
        for _ in range(3):
            assert at_work.acquire(timeout=_LONG)
        while len(interrupts) < 3:
            seen = len(interrupts)
            signal.pthread_kill(main, signal.SIGINT)
            eventually(partial(later_than, seen), lambda: "the interrupt to be seen")
        going_on.set()

    main = threading.get_ident()
    before = signal.signal(signal.SIGINT, interrupt)
    other = threading.Thread(target=interrupt_thrice)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            tensor_bytes.each(work, range(1, 100), threads=3)
        found = len(done)
        other.join(_LONG)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(interrupts) == 3
    assert found == len(done) == 2  # what the other two were at
