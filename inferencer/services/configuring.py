"""HandleReloadConfigRequest: a configuration of TensorFlow Serving becomes the models served, their pins and labels."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tensorflow_serving.config import model_server_config_pb2

from inferencer.following.kept import Choices
from inferencer.following.wishes import Action
from inferencer.services.aside import aside
from inferencer.services.models import Models
from inferencer.services.specs import check_label
from inferencer.settings import AnySettings, ConnectionSettings, ModelSettings
from paramsync.errors import InputError, RequestError, SettingsError, StoreError, UnknownVersionError

_log = logging.getLogger("paramsync.services")
_SECONDS = 60.0  # for versions to come to serve; what is not there by then is taken back
_MARGIN = 0.1  # before the caller's deadline in which to say why it will not be met
_PLATFORM = "tensorflow"
_MOST_RESIDENT = 64
_MOST_MODELS = 256  # each has a thread, and a watch on its store


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a configuration says, in our words."""

    models: tuple[AnySettings, ...]
    choices: Mapping[str, Choices]


class Configuring:
    """One configuration at a time. Lives on one event loop."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def apply(self, config: model_server_config_pb2.ModelServerConfig, *, seconds: float | None) -> None:
        """Returns once all of it is so: where it raises, nothing changed, unless the caller had no more `seconds`.

        What was begun is ended also when its caller leaves. Raises RequestError for what is wrong with the
        configuration, SyncError where a version that it names cannot be used, TimeoutError, NotServingError.
        """
        task = asyncio.ensure_future(self._apply(config))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        left = None if seconds is None else max(0.0, seconds - min(_MARGIN, seconds / 5))
        await asyncio.wait({task}, timeout=left)
        if not task.done():
            raise TimeoutError(f"the configuration was not in place within {seconds:.3g} s, and is still being applied")
        task.result()

    async def _apply(self, config: model_server_config_pb2.ModelServerConfig) -> None:
        async with self._lock:
            before = Wanted(
                tuple(one.settings for one in self._models), {one.name: _choices(one) for one in self._models}
            )
            wanted = await aside(partial(read, config, before.models), "a look at base paths")
            try:
                await asyncio.wait_for(self._become(wanted), _SECONDS)
            except asyncio.TimeoutError:
                await self._back(before)
                raise TimeoutError(
                    f"the configuration was not in place within {_SECONDS:g} s, and was taken back"
                ) from None
            except Exception:
                await self._back(before)
                raise

    async def _back(self, before: Wanted) -> None:
        try:
            await self._become(before)
        except Exception:  # noqa: BLE001, why it was needed says more
            _log.exception("what was served before a configuration that failed could not be had back as a whole")

    async def _become(self, wanted: Wanted) -> None:
        try:
            await self._models.apply(wanted.models)
            for model, choices in wanted.choices.items():
                await self._choose(model, choices)
        except (SettingsError, StoreError, UnknownVersionError) as error:
            raise RequestError(f"config: {error}") from error

    async def _choose(self, model: str, choices: Choices) -> None:
        """What is so already costs nothing. Labels first: no version that keeps one is to leave meanwhile."""
        found = self._models.find(model)
        if isinstance(found.settings, ConnectionSettings):
            return
        [follower] = found.followers
        there = _choices(found)
        for label, number in choices.labels.items():
            if there.labels.get(label) != number:
                await asyncio.wrap_future(follower.ask(Action.LABEL, number, label))
        if choices.pinned != there.pinned:
            action = Action.UNPIN if choices.pinned is None else Action.PIN
            await asyncio.wrap_future(follower.ask(action, choices.pinned))
        for label in there.labels.keys() - choices.labels.keys():
            await asyncio.wrap_future(follower.ask(Action.UNLABEL, None, label))


def read(config: model_server_config_pb2.ModelServerConfig, there: tuple[AnySettings, ...]) -> Wanted:
    """What a configuration asks for, where `there` is served now. Looks at base paths. Raises RequestError."""
    if config.WhichOneof("config") != "model_config_list":
        found = config.WhichOneof("config") or "none"
        raise InputError("config", expected="a model_config_list", found=found)
    listed = config.model_config_list.config
    if len(listed) > _MOST_MODELS:
        raise InputError("model_config_list", expected=f"at most {_MOST_MODELS} models", found=len(listed))
    for name, count in Counter(one.name for one in listed).items():
        if count > 1:
            raise InputError(f"config of model {name!r}", expected="one", found=count)
    known = {one.name: one for one in there}
    settings = tuple(_settings(one, known.get(one.name)) for one in listed)
    return Wanted(settings, {one.name: _wanted(one) for one in listed})


def _settings(config: Any, known: AnySettings | None) -> AnySettings:
    where = f"config of model {config.name!r}"
    if not re.fullmatch(r"[\w.-]+", config.name):
        raise InputError(where, expected="a name of letters, digits, '_', '.' and '-'", found=repr(config.name))
    if config.model_platform not in ("", _PLATFORM):
        raise InputError(f"{where}, model_platform", expected=_PLATFORM, found=repr(config.model_platform))
    if config.HasField("logging_config"):
        raise InputError(f"{where}, logging_config", expected="none: requests are not logged", found="one")
    if isinstance(known, ConnectionSettings):
        if config.base_path or config.version_labels or config.HasField("model_version_policy"):
            expected = f"its name alone, for it is joined from {known.first} and {known.second}"
            raise InputError(where, expected=expected, found="more")
        return known
    path = Path(config.base_path)
    if known is None or path != known.store:
        _check_path(where, config.base_path)
        known = ModelSettings(name=config.name, store=path)
    count = config.model_version_policy.latest.num_versions
    if count > _MOST_RESIDENT:
        raise InputError(f"{where}, num_versions", expected=f"at most {_MOST_RESIDENT}", found=count)
    return replace(known, resident=count) if count else known


def _check_path(where: str, path: str) -> None:
    if not path.startswith("/") or "\0" in path:
        raise InputError(f"{where}, base_path", expected="an absolute path", found=repr(path))
    try:
        is_there = Path(path).is_dir()
    except OSError:  # too long
        is_there = False
    if not is_there:
        raise InputError(f"{where}, base_path", expected="a directory that is there", found=repr(path))


def _wanted(config: Any) -> Choices:
    where = f"config of model {config.name!r}, model_version_policy"
    labels = dict(config.version_labels)
    for label in labels:
        check_label(f"config of model {config.name!r}, version_labels", label)
    policy = config.model_version_policy
    if policy.HasField("all"):
        expected = "latest or specific: all versions of a training run would not fit into memory"
        raise InputError(where, expected=expected, found="all")
    if not policy.HasField("specific"):
        return Choices(labels=labels)
    versions = sorted(set(policy.specific.versions))
    if not versions or len(versions) > _MOST_RESIDENT:
        raise InputError(where, expected=f"from 1 to {_MOST_RESIDENT} specific versions", found=len(versions))
    kept = {str(number): number for number in versions[:-1] if number not in labels.values()}
    return Choices(pinned=versions[-1], labels={**kept, **labels})


def _choices(served: Any) -> Choices:
    status = served.status()
    return Choices(pinned=status.pinned, labels=dict(status.labels))
