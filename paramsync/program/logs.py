"""How the programs log: our own records from INFO up, everybody else's from WARNING up, to standard error."""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def start(handler: logging.Handler | None = None) -> None:
    """To be called once by a program. Another handler than one that writes lines brings its own format."""
    if handler is None:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("paramsync").setLevel(logging.INFO)
