"""Puts the graph of what a function builds into a store: `python -m trainer.graph_publish MODULE:BUILD STORE`."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paramsync.errors import GraphError, ParamsyncError, SettingsError
from paramsync.program import stderr_filter
from paramsync.program.flags import Parser, check_text
from paramsync.store.commit import StoreWriter
from paramsync.store.store import graph_file

from . import settings

if TYPE_CHECKING:
    from paramsync.graphs.capturing import Capture

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code. Prints one line of JSON; what the function prints goes elsewhere."""
    settings.set_environment()
    try:
        target, store = _parse(sys.argv[1:] if arguments is None else arguments)
        with contextlib.redirect_stdout(sys.stderr), stderr_filter.left_out():
            captured = _captured(target)
        graph = captured.graph
        with StoreWriter(store) as writer:
            writer.add_graph(graph.digest, graph.to_bytes())
    except ParamsyncError as error:
        sys.stderr.write(f"trainer.graph_publish: {error}\n")
        return 2 if isinstance(error, SettingsError) else 1
    path = graph_file(store, graph.digest)
    found = {"digest": graph.digest, "parameters": len(graph.parameters), "path": str(path)}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _parse(arguments: Sequence[str]) -> tuple[str, Path]:
    check_text(arguments)
    parser = Parser(prog="trainer.graph_publish", description="Put the graph of what a function builds into a store.")
    parser.add_argument("target", metavar="MODULE:BUILD")
    parser.add_argument("store", type=Path, metavar="STORE")
    given = parser.parse_args(arguments)
    return given.target, given.store


def _captured(target: str) -> Capture:
    import tensorflow as tf

    from paramsync.graphs.capturing import Capture, capture

    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")  # a trainer may have it all
    built = _built(target)
    return built if isinstance(built, Capture) else capture(built)


def _built(target: str) -> Any:
    """What the function returns; what it names, where that is no function but a model."""
    module, colon, name = target.partition(":")
    if not (module and colon and name) or module.startswith("."):
        raise SettingsError(f"expected MODULE:BUILD, such as models.digits:build, found {target!r}")
    try:
        found: Any = _theirs(f"module {module!r} cannot be imported", lambda: importlib.import_module(module))
    except ModuleNotFoundError as error:
        missing = f"module {module!r} is not there" if module.startswith(f"{error.name}") else str(error)
        raise SettingsError(f"{missing}: run this where `import {module}` works") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise SettingsError(f"module {module!r} has no {name!r}: expected the name of a function")
        found = getattr(found, part)
    return _theirs(f"{target} failed", found) if _is_plain_function(found) else found


def _is_plain_function(found: Any) -> bool:
    import keras
    import tensorflow as tf

    from paramsync.graphs.capturing import Capture

    captured = (keras.layers.Layer, tf.Module, Capture, tf.types.experimental.PolymorphicFunction)
    return callable(found) and not isinstance(found, captured)


def _theirs(what: str, call: Callable[[], T]) -> T:
    """The result of somebody else's code, whose errors are told on one line."""
    try:
        return call()
    except (ModuleNotFoundError, ParamsyncError):
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())
        raise GraphError(f"{what}: {type(error).__name__}: {text} ({last.filename}, line {last.lineno})") from error


if __name__ == "__main__":
    sys.exit(main())
