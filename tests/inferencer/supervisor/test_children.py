"""Processes forked from the template: they end when they are killed, and the template may end itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferencer.processes import shared_words
from inferencer.supervisor.child import ChildProcess
from inferencer.supervisor.template import Template
from tests.support.programs import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def template() -> Iterator[Template]:
    template = Template()
    yield template
    template.close()


def test_one_whose_channel_is_closed_is_killed_and_a_template_that_ended_leaves_no_socket(template: Template) -> None:
    words = shared_words.create()
    child = ChildProcess(template, "trial", descriptors=[words])
    os.kill(child.pid, signal.SIGSTOP)  # it hears of nothing
    child.channel.close()
    assert child.gone.wait(30.0)
    child.kill()
    eventually(lambda: template.exit_code(child._number) == -signal.SIGKILL, lambda: "it to end")
    before = template._socket
    os.kill(template._process.pid, signal.SIGKILL)
    eventually(lambda: template.has_ended, lambda: "the template to end")
    other = ChildProcess(template, "trial", descriptors=[words])
    assert before.fileno() == -1
    assert Path(f"/proc/{other.pid}").exists()
    other.kill()
    os.close(words)
