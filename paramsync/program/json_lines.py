"""Log records as JSON, one on each line."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import Any

_KNOWN = ("model", "version", "step")  # what `extra` of a record may say of it


class JsonLines(logging.Formatter):
    """A record's text cannot end its line, nor begin another: JSON escapes what is no printable ASCII."""

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
