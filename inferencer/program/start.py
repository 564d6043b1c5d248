"""Starts the server, after checks that need no server, and drains it at the end."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from paramsync.errors import SettingsError
from paramsync.program import traces
from paramsync.program.process import Stop, raise_descriptor_limit, start_logging
from paramsync.program.service_manager import ServiceManager
from paramsync.program.settings import service_manager
from paramsync.remote.child import MirrorChild
from paramsync.remote.copy_span import trace_copy
from paramsync.remote.trainer_watch import TrainerWatch
from paramsync.rpc.addresses import address

from ..serving.access import access_of
from ..settings.settings import ModelSettings, Settings, client_credentials, prepare_environment
from ..supervisor.template import Template

_DESCRIPTORS = 64
_OF_MODEL = 3  # descriptors of each model: a graph, and a version's file twice, for checking and for sending
_OF_WORKER = 7  # descriptors of each worker: process, channel, 3 listeners for gRPC (one at a path) and 2 for HTTP
_END_OF_MIRROR = 2.0  # seconds that the process that mirrors a bucket may take to end
_log = logging.getLogger("paramsync.inferencer")


def run(settings: Settings, *, stop: Stop) -> None:
    """Serve until told to stop. Raises SettingsError or StoreError if the server cannot start."""
    prepare_environment()
    raise_descriptor_limit()
    _check_descriptors(len(settings.models), settings.workers)
    start_logging(settings.log_format)
    template = Template(log_format=settings.log_format)  # first: its import of TensorFlow takes longest
    with closing(template), _mirrored(settings), traces.exported("paramsync-inferencer") as tracing:
        asyncio.run(_serve(settings, template, stop, service_manager(), tracing=tracing))


@contextmanager
def _mirrored(settings: Settings) -> Iterator[None]:
    """A context that keeps local copies of stores in buckets up to date. Each copy has its own process."""
    models = [model for model in settings.models if isinstance(model, ModelSettings) and model.address]
    credentials = client_credentials(settings)
    with ExitStack() as stack:
        for model in models:
            copied = partial(trace_copy, "download")
            mirror = MirrorChild(model.address, str(model.store), keep=model.resident + 1, on_copied=copied)
            stack.callback(mirror.close, _END_OF_MIRROR)
            if model.trainer is not None:
                stack.enter_context(closing(TrainerWatch(model.trainer, credentials, mirror.look)))
        yield


def _check_descriptors(models: int, workers: int) -> None:
    """Raise SettingsError if this process may have too few descriptors for one version of each model."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _DESCRIPTORS + _OF_MODEL * models + _OF_WORKER * workers
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise SettingsError(
            f"{models} models and {workers} workers need at least {needed} file descriptors, and this process may have"
            f" {limit}: raise the limit (ulimit -n), or serve fewer models"
        )


async def _serve(settings: Settings, template: Template, stop: Stop, manager: ServiceManager, *, tracing: bool) -> None:
    """Serve until told to stop. Raises SettingsError if a port is taken."""
    from ..supervisor.server import Server

    loop, told = asyncio.get_running_loop(), asyncio.Event()
    server = Server(settings, template, tracing=tracing)
    names = ", ".join(model.name for model in settings.models)
    _log.info("inferencer starts: %s; workers: %d", names, settings.workers)
    stop.arm(lambda: loop.is_closed() or loop.call_soon_threadsafe(told.set))
    _warn(settings)
    with closing(template):  # close here, too: threads that wait for its import would keep the event loop from ending
        starting, stopping = asyncio.ensure_future(server.start()), asyncio.ensure_future(told.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()  # no caller has asked for predictions yet
            await asyncio.wait({starting})
            return
        ports = await starting
        predictions, rest = (address(settings.host, port) if port else "none" for port in ports[:2])
        control = address(settings.control_host or settings.host, ports.control)
        _log.info("inferencer ready: predictions %s, control %s, HTTP %s", predictions, control, rest)
        manager.ready(f"predictions {predictions}, control {control}, HTTP {rest}")
        await stopping
        _log.info("inferencer stops: answering what is in flight")
        manager.stopping("answering what is in flight")
        await server.drain()
        _log.info("inferencer stopped")


def _warn(settings: Settings) -> None:
    """Warn of flags without effect, and of ports that others can call without a token or without TLS."""
    tf_serving = settings.tf_serving
    if tf_serving is not None and tf_serving.changing_nothing:
        _log.warning("flags that change nothing here: %s", ", ".join(tf_serving.changing_nothing))
    for port, host in (("predictions", settings.host), ("control", settings.control_host or settings.host)):
        access = access_of(settings, host)
        if advice := access.advice or access.in_plain(tls=settings.tls is not None):
            _log.warning("port for %s: %s", port, advice)
