"""`paramsync workers replace`: other processes take the place of those that answer, at one server after the other."""

from __future__ import annotations

import sys
from argparse import Namespace

from paramsync.cli.formatting import duration, plain, to_json
from paramsync.cli.servers import connected
from paramsync.host.files import line


def run(arguments: Namespace) -> bool:
    """Tells of each as it is replaced. Raises why one is not, which ends it there."""
    with connected(arguments) as inferencers:
        for inferencer in inferencers:
            at = f"{inferencer.address} " if len(inferencers) > 1 else ""
            for replaced in inferencer.replace_workers():
                who = f"process {replaced.after} in the place of {replaced.before}"
                text = line(f"{at}worker {replaced.number}: {who}, {duration(replaced.seconds)}") + "\n"
                report = {"server": inferencer.address, **plain(replaced)}
                sys.stdout.write(to_json(report) if arguments.json else text)
                sys.stdout.flush()
    return True
