"""`paramsync graph publish`: has a child process, which knows TensorFlow, put the graph of a model into a store."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace

from paramsync.cli import programs
from paramsync.cli.settings import environment_for_logs
from paramsync.cli.wording import to_json
from paramsync.errors import GraphError, SettingsError

_PROGRAM = "trainer.graph_publish"
_WRONG_ARGUMENTS = 2


def run(arguments: Namespace) -> bool:
    done = subprocess.run(
        [sys.executable, "-m", programs.module(_PROGRAM), "--", arguments.target, arguments.store],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment_for_logs(),
        check=False,
    )
    if done.returncode:
        _, ours, said = done.stderr.rpartition(f"{_PROGRAM}: ")
        problem = said.strip() if ours else f"ended with exit code {done.returncode}: {done.stderr[-2000:].strip()}"
        raise (SettingsError if done.returncode == _WRONG_ARGUMENTS else GraphError)(problem)
    found = json.loads(done.stdout.splitlines()[-1])
    if arguments.json:
        sys.stdout.write(to_json(found))
    else:
        sys.stdout.write(f"graph {found['digest']} with {found['parameters']} parameters is in {found['path']}\n")
    return True
