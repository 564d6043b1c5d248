"""Processes forked from the template: they end when they are killed, and the template may end itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from inferencer.processes import shared_words
from inferencer.supervisor.child import ChildProcess
from inferencer.supervisor.template import Template
from paramsync.following.faults import Fault, fault_of
from tests.support.programs import PATIENCE, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def template() -> Iterator[Template]:
    template = Template()
    yield template
    template.close()


def _pidfds() -> int:
    return sum("pidfd" in str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink())


def test_one_whose_channel_is_closed_is_killed_and_a_template_that_ended_leaves_no_socket(template: Template) -> None:
    words = shared_words.create()
    open_before = _pidfds()  # children of earlier tests may have left some
    child = ChildProcess(template, "trial", descriptors=[words])
    os.kill(child.pid, signal.SIGSTOP)  # it hears of nothing
    child.channel.close()
    eventually(lambda: child.exit_code() == -signal.SIGKILL, lambda: "it to end")
    assert fault_of(child.fault("calling the graph")) is Fault.THE_MACHINES  # no version is blamed
    assert _pidfds() <= open_before
    child.kill()  # which is nothing to whoever has the number by now
    before = template._socket
    os.kill(template._process.pid, signal.SIGKILL)
    eventually(lambda: template.has_ended, lambda: "the template to end")
    other = ChildProcess(template, "trial", descriptors=[words])
    assert before.fileno() == -1
    assert Path(f"/proc/{other.pid}").exists()
    other.kill()
    os.close(words)


def test_one_that_is_closed_while_it_imports_answers_at_once_and_starts_nothing_more() -> None:
    template = Template()
    waiting = Future[int]()

    def start() -> None:
        try:
            waiting.set_result(template.start("trial", descriptors=[]))
        except BaseException as error:  # noqa: BLE001, it is looked at where it is waited for
            waiting.set_exception(error)

    threading.Thread(target=start, daemon=True).start()
    eventually(template._lock.locked, lambda: "it to be waited for")
    process = template._process
    template.close()
    refused = waiting.exception(PATIENCE)
    assert isinstance(refused, ChildProcessError)
    assert fault_of(refused) is Fault.THE_MACHINES  # no version is put into quarantine for it
    with pytest.raises(ChildProcessError, match="the server ends"):
        template.start("trial", descriptors=[])
    assert template._process is process
    template.close()
