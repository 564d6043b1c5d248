"""What the environment says about connections to object stores."""

from __future__ import annotations

import os
import re

from paramsync.errors import SettingsError

STALLED = 30.0
"""Seconds without a byte of an answer after which a request fails, unless the environment says otherwise."""

_PREFIXES = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE"}  # others: AZURE
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
    """How the variables begin that addresses of this scheme need: AWS, GOOGLE or AZURE."""
    return _PREFIXES.get(scheme, "AZURE")


def connection(scheme: str) -> dict[str, str]:
    """The options of connections for addresses of this scheme. Raises SettingsError for an endpoint that is no URL.

    obstore ignores those in the environment as soon as any is given, and by default limits the time of a whole request,
    however well its bytes flow.
    """
    for name in _ENDPOINTS if prefix(scheme) == "AWS" else ():
        if (endpoint := os.environ.get(name)) and not re.match(r"https?://[^/]", endpoint):
            raise SettingsError(f"{name}: expected a URL such as https://host:port")  # obstore would panic
    names = {name: f"{prefix(scheme)}_{name}".upper() for name in _READ}
    given = {name: os.environ[variable] for name, variable in names.items() if variable in os.environ}
    return {"timeout": "1day", "read_timeout": f"{STALLED:.0f}s"} | given
