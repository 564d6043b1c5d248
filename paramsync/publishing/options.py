"""The options that Publisher, PublishCallback, SessionPublisher and PublishHook have in common."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from paramsync.errors import SettingsError
from paramsync.moments import LATEST_MOMENT
from paramsync.publishing.metrics import Gate, PublishIf
from paramsync.store.state_file import Retention

if TYPE_CHECKING:
    from paramsync.rpc.tls import ServerTls, TlsFiles

OnError = Literal["log", "raise"]


class PublishOptions(TypedDict, total=False):
    """The types of the options. The docstring of Publisher explains each option."""

    keep: int | Retention
    durable: bool
    signing_key: str | Path | None
    on_error: OnError
    allow_nan: bool
    precision: Literal["bfloat16"] | None
    serve_after: float | None
    allow_ops: Collection[str]
    publish_if: PublishIf | None
    control_port: int | None
    host: str
    tls: TlsFiles | None


def check_options(options: PublishOptions) -> None:
    """Raise TypeError for unknown options, and SettingsError for values that cannot be used."""
    if unknown := options.keys() - PublishOptions.__annotations__.keys():
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    on_error, keep, publish_if = options.get("on_error", "log"), options.get("keep", 5), options.get("publish_if")
    if on_error not in ("log", "raise"):
        raise SettingsError(f'on_error: expected "log" or "raise", found {on_error!r}')
    if not isinstance(keep, Retention):
        Retention(keep=keep)
    if options.get("precision") not in (None, "bfloat16"):
        raise SettingsError(f'precision: expected "bfloat16" or None, found {options.get("precision")!r}')
    serve_after = options.get("serve_after")
    if serve_after is not None and not 0 <= serve_after <= LATEST_MOMENT:
        raise SettingsError(f"serve_after: expected from 0 to {LATEST_MOMENT:g} seconds, found {serve_after!r}")
    if publish_if is not None:
        Gate(publish_if)
    if options.get("tls") is not None and options.get("control_port") is None:
        raise SettingsError("tls: expected control_port with it, found none")
    read_tls(options)


def read_tls(options: PublishOptions) -> ServerTls | None:
    """Read the certificate of the control port. Raises SettingsError for files that cannot be used."""
    tls = options.get("tls")
    if tls is None:
        return None
    from dataclasses import replace

    from paramsync.rpc.settings import KEYWORDS  # imported here, because most publishers use no TLS
    from paramsync.rpc.tls import ServerTls

    return ServerTls(replace(tls, options=KEYWORDS))
