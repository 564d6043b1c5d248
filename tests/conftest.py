"""How long the campaigns last: short ones run with all other tests, whole ones with `make campaign`."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--campaign", action="store_true", help="run the campaigns at their whole length")


@pytest.fixture(scope="session")
def whole(request: pytest.FixtureRequest) -> bool:
    """Whether the campaigns run at their whole length."""
    return bool(request.config.getoption("--campaign"))
