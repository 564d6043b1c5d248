"""`paramsync pin`, `unpin` and `rollback`: stay at one version, or follow the newest again."""

from __future__ import annotations

import sys
from argparse import Namespace

from paramsync.cli.wording import plain, to_json
from paramsync.host.files import line
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb


def run(arguments: Namespace) -> bool:
    with Inferencer(arguments.inferencer) as inferencer:
        if arguments.command == "pin":
            status = inferencer.pin(arguments.model, arguments.version)
        elif arguments.command == "unpin":
            status = inferencer.unpin(arguments.model)
        else:
            status = inferencer.rollback(arguments.model)
    sys.stdout.write(to_json(plain(status)) if arguments.json else f"{line(_sentence(status))}\n")
    return True


def _sentence(status: pb.ModelStatus) -> str:
    serving = f"version {status.serving.number} serves" if status.HasField("serving") else "no version serves yet"
    if status.HasField("pinned"):
        return f"{status.model}: pinned to version {status.pinned}; {serving}"
    return f"{status.model}: follows the newest version; {serving}"
