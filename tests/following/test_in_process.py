"""Replica and Follower in a user's program, as docs/serve.md shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync import Follower, Replica
from paramsync.errors import RequestError, SettingsError
from tests.support.programs import ROOT
from tests.support.published import Publisher


def run(script: str, *arguments: str | Path) -> str:
    """The output of a script in a process; fails if the script fails or crashes."""
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"Traceback|Fatal|Aborted|Segmentation", done.stderr), done.stderr
    return done.stdout


def documented(store: Path) -> list[str]:
    """The scripts of the documentation's section, for this store."""
    section = (ROOT / "docs" / "serve.md").read_text().partition("## In your own program")[2]
    return [
        one.replace("/dev/shm/digits", str(store)) for one in re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    ]


@pytest.mark.slow
def test_what_the_documentation_says_works(tmp_path: Path) -> None:
    following, training = documented(tmp_path / "digits")
    run(training)
    printed = run(following)
    assert re.search(r"^\d+ \[\[", printed)
    assert "was played by version" in printed


_FORGETS = """
import sys
from paramsync import Follower, Replica
follower = Follower(Replica("m", sys.argv[1]), poll_seconds=0.01)
follower.start()
print(follower.sync(timeout=100).serving.number)
"""


@pytest.mark.slow
def test_a_program_that_forgets_to_close_ends(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "m")
    publisher.publish(7)
    publisher.close()
    assert run(_FORGETS, tmp_path / "m").split() == ["7"]


def test_what_tensorflow_would_only_note_is_refused(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "m")
    publisher.publish(1)
    publisher.close()
    replica = Replica("m", tmp_path / "m")
    Follower(replica).run_once()
    with tf.Graph().as_default():
        with pytest.raises(RequestError, match=r"outside of tf.function and tf.Graph\(\).as_default\(\)"):
            replica.predict({"x": np.ones([1, 2], np.float32)})
        with pytest.raises(SettingsError, match="expected eager execution, found a graph: within"):
            Replica("m", tmp_path / "m")

    @tf.function
    def noted() -> tf.Tensor:
        return replica.predict({"x": np.ones([1, 2], np.float32)})[0]["seen"]

    with pytest.raises(RequestError, match="call it outside of"):
        noted()
