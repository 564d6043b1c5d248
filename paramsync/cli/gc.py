"""`paramsync gc`: deletes the objects of a bucket that no version needs."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from threading import Event

from rich.table import Table

from paramsync.cli import formatting
from paramsync.cli.bucket import count_objects
from paramsync.cli.formatting import console, duration, size, to_json
from paramsync.cli.process import interruptible
from paramsync.remote import collect
from paramsync.remote.bucket import Bucket
from paramsync.remote.collect import Unneeded


def run(arguments: Namespace) -> bool:
    """Return True once all unneeded objects are deleted, or with `--dry-run` listed."""
    return interruptible(lambda: _run(arguments))


def _run(arguments: Namespace) -> bool:
    bucket = Bucket(arguments.address)
    state = bucket.state()
    found = collect.list_unneeded(bucket, state)

    def wait() -> None:
        if not arguments.json:
            text = f"{count_objects(len(found))} may still be read: deleted in {duration(arguments.grace)}"
            console(stderr=True).print(text, soft_wrap=True)
        Event().wait(arguments.grace)

    if not arguments.dry_run:
        found = collect.delete(bucket, state, found, wait)
    if arguments.json:
        objects = [asdict(unneeded) for unneeded in found]
        sys.stdout.write(to_json({"address": bucket.address, "dry_run": arguments.dry_run, "objects": objects}))
        return True
    screen = console()
    if found:
        screen.print(_table(found, time.time()))
    total = size(sum(unneeded.bytes for unneeded in found))
    done = "would be deleted" if arguments.dry_run else "deleted"
    screen.print(f"{bucket.address}: {count_objects(len(found))}, {total}, {done}", style="bold", soft_wrap=True)
    return True


def _table(found: Sequence[Unneeded], now: float) -> Table:
    table = formatting.table("object", "size", "age", "", right=("size", "age"), whole=("size", "age", ""))
    for unneeded in found:
        why = "no version needs it any more" if unneeded.condemned else "of a publisher that was killed"
        table.add_row(unneeded.name, size(unneeded.bytes), duration(max(0.0, now - unneeded.written_at)), why)
    return table
