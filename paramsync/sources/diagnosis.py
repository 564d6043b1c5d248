"""Finds out why a directory has no version to serve, and what to do. Reads little more than names of files."""

from __future__ import annotations

import re
import time
from pathlib import Path

from paramsync.errors import CorruptCheckpointError, StoreError
from paramsync.host import files
from paramsync.remote import copy_note
from paramsync.sources.saved_models import committed, numbered
from paramsync.store.store import LOCK, read_state, state_file

_SETTLED = 2.0  # seconds: by then the writer of an index has written the state file that lists it
_LOOKED_INTO = 8  # how many numbered directories to look into, beginning with the highest number
_TRIED = 32  # how many files to try to read as a state file
_OURS = re.compile(r"ckpt-\d{1,18}\.index")
_PARTS = re.compile(r".*\.(index|meta|json|pb|data-\d+-of-\d+)|\..*")
# Files of other formats, by name.
_OTHERS = [
    (re.compile(r".*\.tflite"), "a TensorFlow Lite model: put the SavedModel there that it was converted from"),
    (re.compile(r"export\.meta|export-\d+-of-\d+"), "a SessionBundle: export the model as a SavedModel"),
    (re.compile(r".*\.(keras|h5|hdf5)"), "a model as Keras saves it: put there what its model.export(...) writes"),
    (re.compile(r".*\.onnx"), "a model of ONNX: put a SavedModel of it there"),
]


def absence(store: Path) -> str:
    """Return why a store has no version, in one line with the store's path. The same reason gives the same line."""
    return f"{store}: {_why(store)}"


def _why(store: Path) -> str:
    try:
        names = files.names(store)
    except FileNotFoundError:
        nearest = next((parent for parent in store.absolute().parents if parent.is_dir()), None)
        return "no such directory" if nearest is None else f"no such directory, {nearest} is there"
    except NotADirectoryError:
        return "no directory"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not names:
        return "the directory is empty"
    if (note := copy_note.read(store)) is not None and state_file(store).name not in names:
        return f"copies {note.address}: {note.reason or 'nothing is published there yet'}"
    if state_file(store).name in names:
        return "its `checkpoint` names no version"
    if LOCK in names:
        return "its publisher has published nothing yet"
    return "no `checkpoint` in it, nor a SavedModel in a directory whose name is a number"


def misplaced(path: Path) -> str | None:
    """Return what a directory has that cannot be followed, and what to do about it; None if nothing is recognised."""
    try:
        if committed(path) is not None:
            return (
                "expected checkpoints, or SavedModels in directories whose names are numbers, found one SavedModel:"
                f" move it to {path / '1'}"
            )
        below = [path / name for _, name in sorted(numbered(path).items(), reverse=True)[:_LOOKED_INTO]]
        return next((wrong for directory in (*below, path) if (wrong := _other(directory))), None) or _unlisted(path)
    except OSError:
        return None


def _other(directory: Path) -> str | None:
    for name in sorted(files.names(directory)):
        for pattern, what in _OTHERS:
            if pattern.fullmatch(name):
                return f"expected {directory / 'saved_model.pb'}, found {name}, {what}"
    return None


def _unlisted(path: Path) -> str | None:
    """Return what to do about checkpoints in a directory without a file `checkpoint`.

    None if the directory has this file, has no checkpoints, or was written to just now.
    """
    names = files.names(path)
    indexes = [name for name in names if name.endswith(".index") and not _OURS.fullmatch(name)]
    if not indexes or state_file(path).name in names:
        return None
    expected = f"expected a file {state_file(path).name}, which names the latest one"
    for name in [name for name in sorted(names) if not _PARTS.fullmatch(name)][:_TRIED]:
        if _is_state(path, name):
            return (
                f"{expected}, found {files.shown(name)} in its place: leave out latest_filename={files.shown(name)}"
                " where the Saver saves"
            )
    newest = max((path / index).lstat().st_mtime for index in indexes)
    if time.time() - newest < _SETTLED:
        return None
    return (
        f"{expected}, found checkpoints ({files.shown(max(indexes))}) without it: save them by Checkpoint.save, a"
        " CheckpointManager or a Saver, which write it, rather than by Checkpoint.write or save_weights"
    )


def _is_state(path: Path, name: str) -> bool:
    try:
        return read_state(path, name) is not None
    except (StoreError, CorruptCheckpointError):
        return False
