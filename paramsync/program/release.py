"""Which release of something runs here."""

from __future__ import annotations

from importlib import metadata


def release(distribution: str = "paramsync") -> str:
    """Of what was installed; "unknown" for what runs from a folder as it is."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
