"""What both programs read of their environment."""

from __future__ import annotations

import os

from .service_manager import ServiceManager


def service_manager() -> ServiceManager:
    """The one that started this process. Processes that this one starts are not told of it."""
    return ServiceManager(os.environ.pop("NOTIFY_SOCKET", None))
