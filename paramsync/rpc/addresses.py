"""Checks addresses and ports: the default ports, addresses as text, and whether a port is free."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import itertools
import re
import socket
from collections.abc import Collection, Mapping
from contextlib import ExitStack

from paramsync.errors import SettingsError

HOST = "127.0.0.1"
PREDICTIONS_PORT = 8500
REST_PORT = 8501
CONTROL_PORT = 8502
TRAINER_PORT = 8503

LAST_PORT = 65535
# Errors of `bind` to skip: a name may have addresses of other machines, or of a family that is switched off here.
ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_DNS = "dns:///"
_DIGITS = re.compile(r"[0-9]{1,5}")  # isdecimal() and \d also match digits of other scripts
_ADDRESS = re.compile(r"(?:[^\s:\[\]]+|\[[^\s\[\]]*:[^\s\[\]]*\]):([0-9]{1,5})")


def read_port(text: str) -> int:
    """Read a port for argparse; 0 means any free port."""
    if not _DIGITS.fullmatch(text) or int(text) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to {LAST_PORT}, found {text!r}")
    return int(text)


def address(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can call a server on this host: all its addresses are loopback addresses."""
    try:
        resolved = {str(where[0]) for *_, where in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    parsed = [ipaddress.ip_address(text.partition("%")[0]) for text in resolved]
    return bool(host and parsed) and all(map(_is_loopback, parsed))


def _is_loopback(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def check_address(text: str) -> str:
    """Return the text if it is HOST:PORT, else raise SettingsError."""
    match = _ADDRESS.fullmatch(text)
    if not match or not 0 < int(match[1]) <= LAST_PORT:
        raise SettingsError(f"address {text!r}: expected HOST:PORT, such as 127.0.0.1:8500 or [::1]:8500")
    return text


def check_target(text: str) -> str:
    """Return the text if it is HOST:PORT, or dns:///NAME:PORT for all servers of a name, else raise SettingsError."""
    try:
        check_address(text.removeprefix(_DNS))
    except SettingsError as error:
        raise SettingsError(f"{error}, or {_DNS}NAME:PORT") from None
    return text


def resolve(target: str) -> dict[str, str]:
    """Return the addresses that a target stands for now, each with the name to expect in its server's certificate.

    The name for HOST:PORT is "": its certificate names the host itself. If a name cannot be resolved, NAME:PORT is
    returned as an address, and a call of this address fails with the reason.
    """
    where = target.removeprefix(_DNS)
    if where == target:
        return {target: ""}
    name, _, port = where.rpartition(":")
    try:
        found = socket.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return {where: ""}
    return {address(str(at[0]), int(port)): name.strip("[]") for *_, at in sorted(found, key=lambda one: one[-1])}


def check_ports(host: str, ports: Mapping[str, int]) -> None:
    """Raise SettingsError if two ports are the same, or a port is not free. `ports` has the port of each option."""
    check_different(ports)
    for option, port in ports.items():
        if port:
            check_port(host, port, option)


def check_different(ports: Mapping[str, int]) -> None:
    """Raise SettingsError if two ports are the same. 0 means any free port and never counts as the same."""
    for (first, port), (second, same) in itertools.combinations(ports.items(), 2):
        if port and port == same:
            raise SettingsError(f"expected two different ports, found {port} for both {first} and {second}")


def free_port(host: str) -> int:
    """Return a port that was free a moment ago, for a program whose address must be known before it listens."""
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


def check_port(host: str, port: int, option: str) -> None:
    """Raise SettingsError if no server can listen on the port now."""
    try:
        with bound(host, port, socket.SO_REUSEADDR) as probe:  # allowed while old connections are closing
            probe.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(
                f"port {port} of {host} is taken; choose another with {option} (0: any free)"
            ) from error
        raise SettingsError(
            f"cannot listen on port {port} of {host}: {error.strerror}; choose another with --host and {option}"
        ) from error
    except UnicodeError as error:  # a part of the name is empty or too long
        raise SettingsError(
            f"cannot listen on {host!r}: it is no name of a host; choose another with --host"
        ) from error


def bound(host: str, port: int, option: int) -> socket.socket:
    """Return a socket with this option, bound to the first address of the host that this machine has.

    Raises OSError, and UnicodeError for a text that cannot be the name of a host.
    """
    absent: OSError | None = None
    for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with ExitStack() as until_failure:
            try:
                found = until_failure.enter_context(socket.socket(family, kind, protocol))
                found.setsockopt(socket.SOL_SOCKET, option, 1)
                found.bind(where)
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                absent = error
            else:
                until_failure.pop_all()
                return found
    raise absent or OSError(errno.EADDRNOTAVAIL, "the host has no address")


def refused(host: str, port: int, option: str) -> SettingsError:
    """Find out why a server could not listen on a port. Returns the error to raise."""
    try:
        check_port(host, port, option)
    except SettingsError as error:
        return error
    return SettingsError(f"cannot listen on port {port} of {host}; choose another with {option}")


def is_here(host: str, names: Collection[str]) -> bool:
    """Return whether HOST or HOST:PORT names this machine.

    The name is not resolved, because any site can have its name resolve to a loopback address.
    """
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    try:
        return _is_loopback(ipaddress.ip_address(name))
    except ValueError:
        return _plain(name) in ("localhost", *map(_plain, names))


def _plain(name: str) -> str:
    """Return a name in lower case, without the final dot of an absolute name."""
    return name.lower().removesuffix(".")
