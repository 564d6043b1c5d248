"""Log records as JSON, one on each line."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import datetime, timezone
from typing import Any

_log = logging.getLogger("paramsync.program")
_KNOWN = ("model", "version", "step")  # attributes that the `extra` of a logging call may add


class JsonLines(logging.Formatter):
    """Writes one line for each record, whatever its text, because JSON escapes everything but printable ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        event: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        known = {name: getattr(record, name, None) for name in _KNOWN}
        event |= {name: value for name, value in known.items() if value is not None}
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def take_over() -> None:
    """Log warnings and uncaught exceptions. By default Python writes them to standard error."""
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, _: _log.critical("ended by %s", kind.__name__, exc_info=error)
    threading.excepthook = lambda thrown: _log.error(
        "a thread was ended by %s", thrown.exc_type.__name__, exc_info=thrown.exc_value
    )
