"""Access checks for this server's ports, and for stores that callers want to have served."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paramsync.errors import NotAllowedError
from paramsync.rpc.access import Access, Caller, bearer, name_in
from paramsync.rpc.addresses import address, is_loopback

from ..settings.settings import Settings

if TYPE_CHECKING:
    from aiohttp import web

_OPTION = "--reload-root"
_HOSTS_OPTION = "--allow-host"


def access_of(settings: Settings, host: str) -> Access:
    """Return the access rules of a port that listens on this host."""
    certificates = settings.tls is not None and settings.tls.client_ca is not None
    return Access(host=host, tokens=settings.tokens, certificates=certificates, reads=settings.auth_reads)


def caller_of(request: web.BaseRequest) -> Caller:
    """Identify the caller of an HTTP request by address, token and certificate."""
    peer = None if request.transport is None else request.transport.get_extra_info("peername")
    peer_address = address(*peer[:2]) if isinstance(peer, tuple) else "unknown"
    shown = None if request.transport is None else request.transport.get_extra_info("peercert")
    return Caller(peer_address, bearer(request.headers.get("Authorization")), name_in(shown))


def check_origin(what: str, request: web.BaseRequest, access: Access, hosts: Collection[str] = ()) -> None:
    """Raise NotAllowedError for a change that a browser sends for a page of another site.

    Browsers name the site in Origin, and its relation to our site in Sec-Fetch-Site. `hosts` are names that the header
    Host may contain as well.
    """
    host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise NotAllowedError(f"{what}: expected a page of this server, found one of {origin[:200]!r}")
    if site not in ("same-origin", "none"):
        raise NotAllowedError(f"{what}: expected a page of this server, found Sec-Fetch-Site: {site[:200]!r}")
    check_host(what, request, access, hosts)


def check_host(what: str, request: web.BaseRequest, access: Access, hosts: Collection[str] = ()) -> None:
    """Raise NotAllowedError if the header Host names another machine: see Access.check_host."""
    access.check_host(what, request.headers.getall("Host", ()), hosts, option=_HOSTS_OPTION)


class ReloadRoots:
    """The folders below which a caller may ask for any store to be served.

    Without folders, a caller may ask for any store if the server listens on loopback, and for none otherwise.
    """

    def __init__(self, roots: Sequence[Path], *, host: str) -> None:
        self._roots = tuple(roots)
        self._anywhere = not roots and is_loopback(host)

    def check(self, where: str, path: Path) -> None:
        """Raise NotAllowedError for a store that is not below a root. Reads the file system to follow links."""
        if self._anywhere or any(_is_below(path, root) for root in self._roots):
            return
        roots = " or ".join(map(str, self._roots)) or f"a folder that {_OPTION} DIR names to the inferencer"
        raise NotAllowedError(f"{where}: expected one below {roots} ({_OPTION}), found {str(path)[:200]!r}")


def _is_below(path: Path, root: Path) -> bool:
    try:
        return path.resolve(strict=True).is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # the path does not exist, links form a circle, or the name is too long
        return False
