"""`paramsync mirror`: copies new versions from one store to another. At least one of them is in a bucket."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from paramsync.cli.formatting import console, duration, to_json, way
from paramsync.cli.process import complain
from paramsync.errors import EmptiedError, FencedError, ParamsyncError, RemoteError
from paramsync.host import memory
from paramsync.program.process import set_from_handler
from paramsync.remote.bucket import is_address
from paramsync.remote.bucket_status import BucketStatus
from paramsync.remote.mirror import Mirror
from paramsync.remote.outgoing import keep_aside
from paramsync.remote.transfer import Transfer
from paramsync.remote.upload import Claim


def run(arguments: Namespace) -> bool:
    """With --once, return True if the target has the newest version at the end."""
    memory.limit_heap()  # otherwise blocks of a few megabytes would be freed and mapped again, which is slow
    try:
        return _run(arguments)
    except ParamsyncError as error:
        if not arguments.beside:
            raise
        sys.stdout.write(to_json({"error": str(error)}))  # the parent program logs it
        return False


def _run(arguments: Namespace) -> bool:
    screen = console()
    unread: list[str] = []

    def write(facts: dict[str, object]) -> None:
        try:
            sys.stdout.write(to_json(facts))
            sys.stdout.flush()
        except BrokenPipeError:
            if not arguments.beside:
                raise
            if "error" in facts:  # the parent was killed and cannot log this error
                unread.append(str(facts["error"]))

    def tell(done: Transfer) -> None:
        if arguments.beside:
            return  # the parent reads the copied version in the status
        if arguments.json:
            write(_facts(done))
        else:
            screen.print(_line(done))

    def warn(reason: str) -> None:
        if arguments.json:
            write({"error": reason})
        else:
            _complain(reason)

    def report(status: BucketStatus) -> None:
        if arguments.beside:
            write({"status": asdict(status)})

    claim = None
    if arguments.beside:
        seen = (arguments.seen[0], int(arguments.seen[1])) if arguments.seen else None
        claim = Claim(arguments.beside, seen, lambda run, epoch: write({"run": run, "epoch": epoch}))
    with (
        _until_told() as (stop, news),
        Mirror(
            arguments.source, arguments.target, keep=arguments.keep, stop=stop, claim=claim, news=news, report=report
        ) as mirror,
    ):
        if arguments.beside:
            try:
                ended_well = _beside(mirror, tell, warn)
            except (FencedError, EmptiedError) as error:
                write({"error": mirror.describe(error), "over": True})
                ended_well = False
            if not ended_well and unread and not is_address(mirror.source) and Path(mirror.source).exists():
                _complain(f"{unread[-1]}; {keep_aside(Path(mirror.source))} keeps its versions")
            return ended_well
        try:
            if not arguments.once:
                mirror.run(tell, warn)
                return True
            done = mirror.run_once()
        except InterruptedError:
            return False
        except BrokenPipeError:
            raise
        except (RemoteError, OSError) as error:
            raise RemoteError(mirror.describe(error)) from error
        if done is not None:
            tell(done)
        elif mirror.newest is None:
            _complain(f"nothing is published in {arguments.source}")
            return False
        elif not arguments.json:
            screen.print(f"{arguments.target} has the newest version, {mirror.newest}")
        return True


def _beside(mirror: Mirror, tell: Callable[[Transfer], None], warn: Callable[[str], None]) -> bool:
    """Run until the parent program ends, and with it standard input. Then copy the last version that it published.

    Each byte on standard input means that there is a new version. Returns False if the last version could not
    be copied.
    """
    ending = threading.Event()

    def read_to_the_end() -> None:
        while os.read(sys.stdin.fileno(), 1 << 10):
            mirror.news.set()
        ending.set()
        mirror.stop.set()
        mirror.news.set()

    threading.Thread(target=read_to_the_end, daemon=True).start()
    mirror.run(tell, warn)
    if not ending.is_set():
        return True
    mirror.stop.clear()
    done = mirror.finish(tell, warn)
    if done and not is_address(mirror.source):  # the parent's temporary store in memory
        shutil.rmtree(mirror.source, ignore_errors=True)
    return done


def _complain(reason: str) -> None:
    complain(f"paramsync mirror: {reason}")


@contextmanager
def _until_told() -> Iterator[tuple[threading.Event, threading.Event]]:
    """The events `stop` and `news` of a mirror. A second signal ends the process.

    The first SIGTERM or Ctrl-C sets both events, so that the mirror finishes its current copy, without retries.
    """
    stop, news = threading.Event(), threading.Event()

    def ask(number: int, frame: object) -> None:
        set_from_handler(stop)
        set_from_handler(news)
        for other in before:
            signal.signal(other, before[other])

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop, news
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(done: Transfer) -> str:
    return f"version {done.version.number}: {way(done)}, {duration(done.seconds)}"


def _facts(done: Transfer) -> dict[str, object]:
    return {
        "version": done.version.number,
        "step": done.version.step,
        "bytes": done.bytes,
        "size": done.size,
        "way": done.way,
        "deltas": done.deltas,
        "seconds": done.seconds,
    }
