"""`paramsync watch`: what happens to versions, a line an event, until it is interrupted or the server stops."""

from __future__ import annotations

import sys
import time
from argparse import Namespace

from paramsync.cli.wording import duration, plain, to_json
from paramsync.host.files import line
from paramsync.rpc.client import Inferencer
from paramsync.v1 import sync_pb2 as pb

_WORDS = {
    pb.Event.FOUND: "found",
    pb.Event.RESTORED: "restored",
    pb.Event.SWAPPED: "serves",
    pb.Event.QUARANTINED: "refused",
}


def run(arguments: Namespace) -> bool:
    with Inferencer(arguments.inferencer) as inferencer:
        for event in inferencer.watch(arguments.model):
            sys.stdout.write(to_json(plain(event)) if arguments.json else f"{line(_told(event))}\n")
            sys.stdout.flush()  # whoever reads waits for each
    return True


def _told(event: pb.Event) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    what = _WORDS.get(event.kind, pb.Event.Kind.Name(event.kind).lower())
    told = f"{at} {event.model}: version {event.version.number} (step {event.version.step}) {what}"
    if event.kind == pb.Event.SWAPPED:
        return f"{told}, restored in {duration(event.restore_seconds)}"
    return f"{told}: {event.reason}" if event.reason else told
