"""Puts the graph of a user's model into a store: `python -m trainer.graph_publish MODULE:BUILD STORE`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramsync.errors import ParamsyncError, SettingsError
from paramsync.program.flags import Parser, check_text
from paramsync.store.commit import StoreWriter
from paramsync.store.store import graph_file

from . import job_source, settings

if TYPE_CHECKING:
    from paramsync.graphs.capturing import Capture


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program, and return its exit code. Prints one line of JSON. Prints of user code go to standard error."""
    settings.set_environment()
    try:
        target, store, allow_ops = _parse(sys.argv[1:] if arguments is None else arguments)
        with contextlib.redirect_stdout(sys.stderr):
            graph = _capture(target).graph
            content = graph.to_bytes()
            graph.check_file(content, allowed=allow_ops)  # followers make the same check
        with StoreWriter(store) as writer:
            writer.add_graph(graph.digest, content)
    except ParamsyncError as error:
        sys.stderr.write(f"trainer.graph_publish: {error}\n")
        return 2 if isinstance(error, SettingsError) else 1
    path = graph_file(store, graph.digest)
    found = {"digest": graph.digest, "parameters": len(graph.parameters), "path": str(path)}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _parse(arguments: Sequence[str]) -> tuple[str, Path, Sequence[str]]:
    check_text(arguments)
    parser = Parser(prog="trainer.graph_publish", description="Put the graph of what a function builds into a store.")
    parser.add_argument("target", metavar="MODULE:BUILD")
    parser.add_argument("store", type=Path, metavar="STORE")
    parser.add_argument("--allow-op", dest="allow_ops", action="append", metavar="NAME")
    given = parser.parse_args(arguments)
    if not job_source.is_source(given.target):
        raise SettingsError(f"expected MODULE:BUILD, such as models.digits:build, found {given.target!r}")
    return given.target, given.store, given.allow_ops or ()


def _capture(target: str) -> Capture:
    import keras
    import tensorflow as tf

    from paramsync.graphs.capturing import Capture, capture

    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")  # a trainer on this machine may need all GPU memory
    source: Any = job_source.load(target)
    models = (keras.layers.Layer, tf.Module, Capture, tf.types.experimental.PolymorphicFunction)
    if callable(source) and not isinstance(source, models):
        source = job_source.call(f"{target} failed", source)
    return source if isinstance(source, Capture) else capture(source)


if __name__ == "__main__":
    sys.exit(main())
