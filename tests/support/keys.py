"""Keys for tests of signed versions, and attacks of somebody who can write into a store but has no key."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from paramsync.store.signing import create_keys
from paramsync.store.store import record_file
from paramsync.version import Version


class Keys(NamedTuple):
    """The files of a key pair."""

    private: Path
    public: Path
    id: str


def keys(folder: Path, name: str = "signs") -> Keys:
    return Keys(*create_keys(folder / name))


def rewritten(store: Path, version: Version, **values: Any) -> Version:
    """Write a version's record with other values."""
    other = replace(version, **values)
    record_file(store, version.prefix).write_text(other.to_json())
    return other


def renumbered(store: Path, version: Version, number: int) -> None:
    """Put all files of a version into the store again under another number, listed as the latest version."""
    name = f"ckpt-{number}"
    for file in store.glob(f"{version.prefix}.*"):
        if file.suffix != ".json":
            os.link(file, store / (name + file.name.removeprefix(version.prefix)))
    record = json.loads(version.to_json()) | {"number": number, "prefix": name}
    record_file(store, name).write_text(json.dumps(record))
    listed(store, version.prefix, name)


def listed(store: Path, *names: str) -> None:
    """Write a file `checkpoint` that lists these names, with the last name as the latest."""
    lines = [f'all_model_checkpoint_paths: "{name}"' for name in names]
    (store / "checkpoint").write_text("\n".join([f'model_checkpoint_path: "{names[-1]}"', *lines]) + "\n")
