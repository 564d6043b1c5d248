"""The serving program up to its server: what can be wrong is found before TensorFlow is imported."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys

from paramsync.host import memory
from paramsync.program import stderr_filter
from paramsync.program.process import raise_descriptor_limit, start_logging
from paramsync.rpc.addresses import check_ports

from ..event_loop.idle import Rests
from ..event_loop.loop import Policy
from ..event_loop.reserved_processor import OwnProcessor
from ..settings.settings import Settings, ports, prepare_environment
from .stop import Stop

_log = logging.getLogger("paramsync.inferencer")
_SWITCH_SECONDS = 0.001  # the longest that a thread which restores keeps the interpreter from those that serve
_COLLECTIONS = (10_000, 10, 20)
"""How many objects there are between two collections of garbage, how many of these between two of older objects, and
how many of those, at least, between two of all. Such a one holds every answer up for 5 ms. Calls that
come together are some thousands of objects for a moment, of which none is garbage."""


def run(settings: Settings, *, stop: Stop) -> None:
    """Serve until told to stop. Raises SettingsError, or StoreError, where it cannot begin."""
    check_ports(settings.host, ports(settings))
    prepare_environment()
    raise_descriptor_limit()
    start_logging()
    _log.info("inferencer starts: %s; TensorFlow is imported first", ", ".join(one.name for one in settings.models))
    logging.getLogger("watchdog").setLevel(logging.CRITICAL)  # it calls its own end an error
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_leaving)
    rests = Rests()
    asyncio.set_event_loop_policy(Policy(rests))
    asyncio.run(_serve(settings, stop, rests))


def _is_no_leaving(record: logging.LogRecord) -> bool:
    """A caller that leaves just before its answer is sent is no error of ours, nor worth a traceback."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core")


async def _serve(settings: Settings, stop: Stop, rests: Rests) -> None:
    with stderr_filter.left_out():
        import tensorflow as tf  # after the arguments are known to be good: it takes seconds

        from .server import serve

        tf.config.set_visible_devices([], "GPU")
        tf.config.list_logical_devices()  # now, so that what it has to say about them is said here
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()  # what was imported stays: it is half a million objects, which need not be looked at ever again
    gc.set_threshold(*_COLLECTIONS)
    memory.limit_heap()
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    stop.arm(lambda: loop.is_closed() or loop.call_soon_threadsafe(asked.set))
    keeping = asyncio.ensure_future(OwnProcessor().keep())
    await serve(settings, asked, rests)
    keeping.cancel()
