"""What is asked of all workers, where one of them cannot answer."""

from __future__ import annotations

import pytest

from inferencer.supervisor.fleet import Fleet, Worker

pytestmark = pytest.mark.slow


def test_what_one_worker_refuses_costs_no_answer_of_the_others() -> None:
    fleet = Fleet(2, (), {}, lambda: ((), ()))
    try:
        workers = [Worker(fleet.template, "trial", descriptors=[fleet._words_file]) for _ in range(2)]
        for number, worker in enumerate(workers):
            worker.number = number
        fleet._workers = workers
        assert fleet.ask_all("drain", 0.1, seconds=30.0) == []  # as of one that is being started
        assert fleet.ask_all("pid", seconds=30.0) == [worker.pid for worker in workers]
    finally:
        fleet.close()
