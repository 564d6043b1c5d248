"""Settings for connections to object stores, from environment variables."""

from __future__ import annotations

import os
import re

from paramsync.errors import SettingsError

STALLED = 30.0
"""A request fails after this many seconds without a byte of an answer. A bucket that another can replace has less time
at first, an upload over a slow link has more, and the environment can set another limit."""

_PREFIXES = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE"}  # all other schemes use AZURE
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_READ = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
)


def prefix(scheme: str) -> str:
    """Return the prefix of environment variables for addresses of this scheme: AWS, GOOGLE or AZURE."""
    return _PREFIXES.get(scheme, "AZURE")


def connection(scheme: str, stalled: float = STALLED) -> dict[str, str]:
    """Return the options for connections to addresses of this scheme. Raises SettingsError if an endpoint is not a URL.

    obstore does not read its connection options from the environment if it is given any, so they are read here. Its
    default `timeout` would end a long transfer even while bytes arrive, so only `read_timeout` is short.
    """
    for name in _ENDPOINTS if prefix(scheme) == "AWS" else ():
        if (endpoint := os.environ.get(name)) and not re.match(r"https?://[^/]", endpoint):
            raise SettingsError(f"{name}: expected a URL such as https://host:port")  # obstore would panic
    names = {name: f"{prefix(scheme)}_{name}".upper() for name in _READ}
    given = {name: os.environ[variable] for name, variable in names.items() if variable in os.environ}
    return {"timeout": "1day", "read_timeout": f"{stalled:.0f}s"} | given
