"""python -m inferencer: serves predictions from whatever is the newest published version."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from inferencer.settings import Settings, check_ports, parse, prepare_environment
from paramsync.errors import SettingsError, StoreError


class _Stop:
    """SIGTERM and SIGINT, whenever they come: at once before there is anything to drain, once during, never after."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: asyncio.Event | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def arm(self) -> asyncio.Event:
        """From now on a signal sets this event on the running loop."""
        self._asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        return self._asked

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None or self._asked is None:
            os._exit(0)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._asked.set)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 after a drain, 2 for settings that cannot be used."""
    stop = _Stop()
    try:
        settings = parse(sys.argv[1:] if arguments is None else arguments)
        check_ports(settings)
        prepare_environment()
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("watchdog").setLevel(logging.CRITICAL)  # it calls its own end an error
        asyncio.run(_serve(settings, stop))
    except (SettingsError, StoreError) as error:
        sys.stderr.write(f"inferencer: {error}\n")
        return 2
    return 0


async def _serve(settings: Settings, stop: _Stop) -> None:
    import tensorflow as tf  # after the arguments are known to be good: it takes seconds

    from inferencer.server import serve

    tf.config.set_visible_devices([], "GPU")
    await serve(settings, stop.arm())


if __name__ == "__main__":
    sys.exit(main())
