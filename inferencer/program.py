"""The serving program up to its server: what can be wrong is found before TensorFlow is imported."""

from __future__ import annotations

import asyncio
import logging

from inferencer.settings import Settings, ports, prepare_environment
from inferencer.stop import Stop
from paramsync import logs, noise
from paramsync.addresses import check_ports


def run(settings: Settings, *, stop: Stop) -> None:
    """Serve until told to stop. Raises SettingsError, or StoreError, where it cannot begin."""
    check_ports(settings.host, ports(settings))
    prepare_environment()
    logs.start()
    logging.getLogger("watchdog").setLevel(logging.CRITICAL)  # it calls its own end an error
    import os, sys, gc
    if os.environ.get("SW"): sys.setswitchinterval(float(os.environ["SW"]))
    asyncio.run(_serve(settings, stop))


async def _serve(settings: Settings, stop: Stop) -> None:
    with noise.left_out():
        import tensorflow as tf  # after the arguments are known to be good: it takes seconds

        from inferencer.server import serve

        tf.config.set_visible_devices([], "GPU")
        import os
        if os.environ.get("INTRA"): tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["INTRA"]))
        if os.environ.get("GC"):
            import gc; gc.collect(); gc.freeze()
        tf.config.list_logical_devices()  # now, so that what it has to say about them is said here
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    stop.arm(lambda: loop.is_closed() or loop.call_soon_threadsafe(asked.set))
    await serve(settings, asked)
