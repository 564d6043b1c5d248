"""Keeps an inference copy of a model up to date while the model is being trained.

    from paramsync import Publisher, PublishSchedule  # in the program that trains
    from paramsync import Follower, Replica  # in a program of your own that serves

See `paramsync.keras` for Keras, `paramsync.session` for sessions of TensorFlow 1, and `paramsync.graphs` for graphs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramsync.following.composite import Connection
    from paramsync.following.follower import Follower
    from paramsync.following.one_version import latest
    from paramsync.following.replica import Replica
    from paramsync.publishing.job import Job, JobSettings
    from paramsync.publishing.publisher import Publisher
    from paramsync.publishing.schedule import PublishSchedule
    from paramsync.rpc.tls import TlsFiles
    from paramsync.store.state_file import Retention
    from paramsync.store.store import Store
    from paramsync.version import Version

_MODULES = {
    "Connection": "following.composite",
    "Follower": "following.follower",
    "Job": "publishing.job",
    "JobSettings": "publishing.job",
    "PublishSchedule": "publishing.schedule",
    "Publisher": "publishing.publisher",
    "Replica": "following.replica",
    "Retention": "store.state_file",
    "Store": "store.store",
    "TlsFiles": "rpc.tls",
    "Version": "version",
    "latest": "following.one_version",
}
__all__ = [
    "Connection",
    "Follower",
    "Job",
    "JobSettings",
    "PublishSchedule",
    "Publisher",
    "Replica",
    "Retention",
    "Store",
    "TlsFiles",
    "Version",
    "latest",
]


def __getattr__(name: str) -> object:
    """Import a name, and what it depends on, such as TensorFlow, when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from paramsync.program.packages import with_tensorflow

    with with_tensorflow(f"paramsync.{name}"):
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
