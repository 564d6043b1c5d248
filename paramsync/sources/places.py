"""Where to listen for what is published: which names in a folder mean that something was, by the kind of store."""

from __future__ import annotations

import re
from pathlib import Path

from paramsync.sources.watch import Place

# A publisher and TensorFlow rename onto `checkpoint`; a Saver writes its graph after that, and so may anybody.
_STORE = re.compile(r"checkpoint|[^/]*\.meta|graph-[^/]*\.pb|\d{1,18}|saved_model\.pb")
_NUMBERED = re.compile(r"checkpoint|\d{1,18}")
# `saved_model.pb` comes last where TensorFlow writes, and in any order where a folder is copied.
_SAVED_MODEL = re.compile(r"saved_model\.pb(txt)?|variables")
_VARIABLES = re.compile(r"variables\..*")


def of_store(path: Path) -> list[Place]:
    """Of a directory of checkpoints, or of one that shows nothing yet."""
    return [Place(path, _STORE)]


def of_numbered(path: Path, highest: list[Path]) -> list[Place]:
    """Of a directory of numbered SavedModels, of which those at `highest` may still be written."""
    return [Place(path, _NUMBERED), *(place for one in highest for place in _of_saved_model(one))]


def of_graph(path: Path) -> list[Place]:
    """Of a graph file or SavedModel that may not be there yet."""
    found = [Place(path.absolute().parent, re.compile(re.escape(path.name)))]
    return [*found, *_of_saved_model(path)] if path.is_dir() else found


def _of_saved_model(path: Path) -> list[Place]:
    return [Place(path, _SAVED_MODEL), Place(path / "variables", _VARIABLES)]
