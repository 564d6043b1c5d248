"""Says how to install a missing extra of paramsync.

The command names the source of this installation, so that pip does not take another paramsync from an index.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

_TENSORFLOW = ("tensorflow", "keras", "watchdog")  # the packages of the extra `tensorflow`


def install(extra: str) -> str:
    """Return the command that installs an extra of this distribution."""
    from importlib import metadata  # imported here, because the module is rarely needed

    try:
        return f"pip install {requirement(extra, metadata.distribution('paramsync').read_text('direct_url.json'))}"
    except metadata.PackageNotFoundError:  # the program runs from a checkout
        return f"pip install '.[{extra}]' in the folder of paramsync"


def requirement(extra: str, direct_url: str | None) -> str:
    """Return the requirement, quoted for a shell. `direct_url` is pip's record of the source; None means an index."""
    if direct_url is None:
        return f"'paramsync[{extra}]'"
    source = json.loads(direct_url)
    url, vcs = source["url"], source.get("vcs_info")
    return (
        f"'paramsync[{extra}] @ {url}'"
        if vcs is None
        else f"'paramsync[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}'"
    )


@contextmanager
def with_tensorflow(what: str) -> Iterator[None]:
    """If an import in the block fails because TensorFlow is missing, add to the error how to install it for `what`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _TENSORFLOW:
            raise
        text = f"{what} needs {error.name}, which is not installed: {install('tensorflow')}"
        raise ModuleNotFoundError(text, name=error.name) from error
