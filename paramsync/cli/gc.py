"""`paramsync gc`: deletes the objects of a bucket that no version needs."""

from __future__ import annotations

import sys
from argparse import Namespace
from threading import Event

from paramsync.cli.bucket import count_objects
from paramsync.cli.formatting import console, duration, size, to_json
from paramsync.remote import collect
from paramsync.remote.bucket import Bucket, asked_once


def run(arguments: Namespace) -> bool:
    """True once everything that no version needs is deleted, or listed by `--dry-run`."""
    bucket = Bucket(arguments.address)
    state = bucket.state()
    with asked_once():
        unnamed = collect.list_unnamed(bucket, state)
    condemned = list(state.condemned)
    names = [*condemned, *unnamed]
    if not arguments.dry_run:
        if condemned and arguments.grace:
            if not arguments.json:
                waiting = f"{count_objects(condemned)} may still be read: deleted in {duration(arguments.grace)}"
                console(stderr=True).print(waiting, soft_wrap=True)
            Event().wait(arguments.grace)
        with asked_once():
            names = collect.delete(bucket, names)
    if arguments.json:
        sys.stdout.write(to_json({"address": bucket.address, "dry_run": arguments.dry_run, "objects": names}))
        return True
    screen = console()
    for name in names:
        why = f"{size(unnamed[name])}, which no state names" if name in unnamed else "which no version needs any more"
        screen.print(f"{name}: {why}", soft_wrap=True)
    done = "would be deleted" if arguments.dry_run else "deleted"
    screen.print(f"{bucket.address}: {count_objects(names)} {done}", style="bold", soft_wrap=True)
    return True
