"""Which package to install for what is missing: the one that this was installed from, whoever published that name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

_TENSORFLOW = ("tensorflow", "keras", "watchdog")  # what comes with the extra


def install(extra: str) -> str:
    """The command that installs an extra of this distribution."""
    from importlib import metadata  # only where something is missing

    try:
        return f"pip install {requirement(extra, metadata.distribution('paramsync').read_text('direct_url.json'))}"
    except metadata.PackageNotFoundError:  # it runs from a folder as it is
        return f"pip install '.[{extra}]' in the folder of paramsync"


def requirement(extra: str, direct_url: str | None) -> str:
    """As a shell takes it, for what pip noted of its source: None where that was an index."""
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
    """An import within that fails for want of TensorFlow says that `what` needs it, and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _TENSORFLOW:
            raise
        text = f"{what} needs {error.name}, which is not installed: {install('tensorflow')}"
        raise ModuleNotFoundError(text, name=error.name) from error
