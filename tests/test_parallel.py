"""Work on several threads is all done when the call returns, or its error is raised."""

from __future__ import annotations

import threading

import pytest

from paramsync import parallel


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_every_item_is_worked_on_once(threads: int) -> None:
    done: list[int] = []
    parallel.each(done.append, range(1, 1000), threads=threads)
    assert sorted(done) == list(range(1, 1000))


def test_the_threads_work_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=10)

    def meet(_: int) -> None:
        together.wait()

    parallel.each(meet, range(1, 4), threads=3)


def test_an_error_is_raised_and_the_threads_are_gone() -> None:
    def divide(item: int) -> None:
        assert 1 // item != 7

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        parallel.each(divide, range(-5, 5), threads=4)
    assert threading.active_count() == before
