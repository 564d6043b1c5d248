"""The tree in which TensorFlow Serving's test looks for its server and its models: ours, and the checkout's."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.programs import ROOT


def checked(checkout: Path) -> Path:
    """The folder with its sources. Ends the program where there is none."""
    source = checkout.resolve() / "tensorflow_serving"
    if not (source / "model_servers" / "tensorflow_model_server_test.py").is_file():
        raise SystemExit(f"{checkout}: expected a checkout of TensorFlow Serving, found none")
    return source


def tree(source: Path, folder: Path) -> None:
    """TEST_SRCDIR/tf_serving/tensorflow_serving, where `tensorflow_model_server` is ours."""
    theirs = folder / "tf_serving" / "tensorflow_serving"
    (theirs / "model_servers").mkdir(parents=True)
    (theirs / "servables").symlink_to(source / "servables")
    server = theirs / "model_servers" / "tensorflow_model_server"
    server.write_text(
        f"#!/bin/sh\nunset TF_USE_LEGACY_KERAS\n"
        f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -m paramsync.cli serve --tf-serving "$@"\n'
    )
    server.chmod(0o755)
