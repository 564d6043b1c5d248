"""`paramsync label` and `unlabel`: names for versions, which requests may ask for in place of numbers."""

from __future__ import annotations

import sys
from argparse import Namespace

from paramsync.cli.wording import plain, to_json
from paramsync.host.files import line
from paramsync.rpc.client import Inferencer


def run(arguments: Namespace) -> bool:
    with Inferencer(arguments.inferencer) as inferencer:
        if arguments.command == "label":
            status = inferencer.label(arguments.model, arguments.label, arguments.version)
        else:
            status = inferencer.unlabel(arguments.model, arguments.label)
    if arguments.json:
        sys.stdout.write(to_json(plain(status)))
    else:
        labels = ", ".join(f"{label} is version {number}" for label, number in sorted(status.labels.items()))
        sys.stdout.write(line(f"{status.model}: {labels or 'no labels'}") + "\n")
    return True
