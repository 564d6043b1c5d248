"""Addresses as text, and ports that can be had or not."""

from __future__ import annotations

import argparse
import re
import socket

import pytest

from paramsync.errors import SettingsError
from paramsync.rpc import addresses


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("text", "port"), [("0", 0), ("8500", 8500), ("65535", 65535)])
def test_a_port_is_read(text: str, port: int) -> None:
    assert addresses.read_port(text) == port


@pytest.mark.parametrize("text", ["", "-1", "65536", "8500 ", "1e3", "1_000", "\u0663\u0664", "\u00b2", "9" * 5000])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(f"expected a port from 0 to 65535, found {text!r}")):
        addresses.read_port(text)


@pytest.mark.parametrize(
    ("host", "whole"), [("127.0.0.1", "127.0.0.1:8500"), ("::1", "[::1]:8500"), ("localhost", "localhost:8500")]
)
def test_a_host_and_a_port_make_an_address(host: str, whole: str) -> None:
    assert addresses.address(host, 8500) == whole
    assert addresses.check_address(whole) == whole


@pytest.mark.parametrize(
    "text",
    [
        "", "localhost", ":8500", "localhost:", "localhost:0", "localhost:99999", "localhost:http", "::1:8500", "[::1]",
        "[localhost]:8500", "[]:8500", "http://localhost:8500", "local host:8500", "localhost:8500\n",
        "localhost:\u0668\u0665",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"address {text!r}: expected HOST:PORT")):
        addresses.check_address(text)


IPV6 = pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6"))


@pytest.mark.parametrize("host", ["127.0.0.1", IPV6])
def test_a_port_that_is_taken_is_said_with_the_option_that_mends_it(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port {port} of {host} is taken; choose another with --port"):
            addresses.check_ports(host, {"--port": port, "--other": 0})
        assert "is taken" in str(addresses.refused(host, port, "--port"))
    addresses.check_ports(host, {"--port": port, "--other": 0})


def test_a_host_that_is_not_this_machines_is_refused() -> None:
    with pytest.raises(SettingsError, match="Cannot assign requested address; choose another with --host and --port"):
        addresses.check_port("192.0.2.1", 8500, "--port")
    assert "cannot listen on port 8500 of " in str(addresses.refused("no host", 8500, "--port"))


def test_one_port_given_twice_is_refused_but_for_any_free_one() -> None:
    with pytest.raises(SettingsError, match="expected two different ports, found 9000 for both --b and --c"):
        addresses.check_ports("127.0.0.1", {"--a": 0, "--b": 9000, "--c": 9000, "--d": 0})
