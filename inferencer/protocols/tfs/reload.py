"""HandleReloadConfigRequest: applies the models, pins and labels of a configuration of TensorFlow Serving."""

from __future__ import annotations

import asyncio
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tensorflow_serving.config import model_server_config_pb2

from paramsync.errors import InputError, RequestError, SettingsError, StoreError, UnknownVersionError
from paramsync.following.pins_file import MOST_LABELS, Change, check_label
from paramsync.host.files import shown

from ...serving.access import ReloadRoots
from ...serving.call_with_timeout import aside
from ...serving.served import Model
from ...settings import readers
from ...settings.settings import AnySettings, ConnectionSettings, ModelSettings
from ..sync.service import seconds_to_wait

_PLATFORM = "tensorflow"
_MOST_RESIDENT = 64
_MOST_MODELS = 256  # each model has a thread, and a watch on its store
_MOST_REMEMBERED = 1024  # models whose choices are remembered, even when they are no longer served


@dataclass(frozen=True, slots=True)
class ConfiguredChoices:
    """A model's pin and labels that a configuration set. The next configuration removes them unless it repeats them."""

    pin: bool = False
    labels: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """What a configuration asks for: the settings of models, the changes of pins and labels, and the choices."""

    models: tuple[AnySettings, ...]
    changes: Mapping[str, Change]
    choices: Mapping[str, ConfiguredChoices]


Apply: TypeAlias = "Callable[[Sequence[AnySettings], Mapping[str, Change]], Awaitable[None]]"
"""A function that serves exactly these models from now on, with these changes. See `Registry.apply`."""


class Configuring:
    """Applies one configuration at a time. Lives on one event loop."""

    def __init__(self, models: Iterable[Model], apply: Apply, *, trust: tuple[Path, ...] = ()) -> None:
        """Versions of new models must be signed by a key in `trust`, or by a key of the models served now."""
        self._models = models
        self._apply_models = apply
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._choices: Mapping[str, ConfiguredChoices] = {}
        self._trust = tuple(dict.fromkeys((*trust, *_trust_of([model.settings for model in models]))))

    async def apply(
        self,
        config: model_server_config_pb2.ModelServerConfig,
        *,
        seconds: float | None = None,
        roots: ReloadRoots | None = None,
    ) -> None:
        """Apply a configuration, and return once all of it is in effect.

        After an error, nothing has changed; after a TimeoutError, the configuration is still being applied. It is also
        applied if its caller leaves. Stores must be below `roots`, if given. Raises RequestError for a wrong
        configuration, NotAllowedError for stores elsewhere, SyncError if a version that the configuration needs cannot
        be used, TimeoutError after `seconds`, NotServingError.
        """
        task = asyncio.ensure_future(self._apply(config, roots))
        self._tasks.add(task)
        task.add_done_callback(self._over)
        await asyncio.wait({task}, timeout=seconds_to_wait(seconds))
        if not task.done():
            raise TimeoutError(f"the configuration was not in place within {seconds:.3g} s, and is still being applied")
        task.result()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks the error as seen, or asyncio would log it if the caller has left

    async def _apply(self, config: model_server_config_pb2.ModelServerConfig, roots: ReloadRoots | None) -> None:
        async with self._lock:
            there = tuple(model.settings for model in self._models)
            look = partial(read, config, there, self._choices, roots, trust=self._trust)
            plan = await aside(look, "a look at base paths")
            try:
                await self._apply_models(plan.models, plan.changes)
            except (SettingsError, StoreError, UnknownVersionError) as error:
                raise RequestError(f"config: {error}") from error
            except TimeoutError:
                self._remember(plan)
                raise
            self._remember(plan)

    def _remember(self, plan: ReloadPlan) -> None:
        choices = {**self._choices, **plan.choices}
        self._choices = dict([*choices.items()][-_MOST_REMEMBERED:])


def read(
    config: model_server_config_pb2.ModelServerConfig,
    there: Collection[AnySettings],
    choices: Mapping[str, ConfiguredChoices],
    roots: ReloadRoots | None,
    *,
    trust: tuple[Path, ...] = (),
) -> ReloadPlan:
    """Translate a configuration. `there` are the models served now; `choices` come from earlier configurations.

    Versions of new stores must be signed by a key in `trust`, so that a configuration cannot avoid signatures. The base
    paths of new stores must exist. Raises RequestError, NotAllowedError.
    """
    if config.WhichOneof("config") != "model_config_list":
        raise InputError("config", expected="a model_config_list", found=config.WhichOneof("config") or "none")
    listed = config.model_config_list.config
    if len(listed) > _MOST_MODELS:
        raise InputError("model_config_list", expected=f"at most {_MOST_MODELS} models", found=len(listed))
    for name, count in Counter(model.name for model in listed).items():
        if count > 1:
            raise InputError(f"config of model {name!r}", expected="one", found=count)
    known = {model.name: model for model in there}
    settings = tuple(_settings(model, known.get(model.name), roots, trust) for model in listed)
    changes = {model.name: _change(model, choices.get(model.name, ConfiguredChoices())) for model in listed}
    now = {name: ConfiguredChoices(change.pinned is not None, change.labels.keys()) for name, change in changes.items()}
    return ReloadPlan(settings, changes, now)


def _trust_of(models: Iterable[AnySettings]) -> tuple[Path, ...]:
    """Return the files of public keys that must have signed the versions of these models."""
    return tuple(path for model in models if isinstance(model, ModelSettings) for path in model.trust)


def _settings(
    config: Any, known: AnySettings | None, roots: ReloadRoots | None, trust: tuple[Path, ...]
) -> AnySettings:
    try:
        readers.name(config.name)
    except ArgumentTypeError as error:
        raise RequestError(f"config of model {shown(config.name)}: {error}") from error
    where = f"config of model {config.name!r}"
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
    if known is None or path != known.store.absolute():
        _check_path(where, config.base_path, roots)
        own = known.trust if known is not None else ()
        known = ModelSettings(name=config.name, store=path, trust=own or trust)
    count = config.model_version_policy.latest.num_versions
    if count > _MOST_RESIDENT:
        raise InputError(f"{where}, num_versions", expected=f"at most {_MOST_RESIDENT}", found=count)
    return replace(known, latest=count or None)


def _check_path(where: str, path: str, roots: ReloadRoots | None) -> None:
    if not path.startswith("/") or "\0" in path:
        raise InputError(f"{where}, base_path", expected="an absolute path", found=repr(path))
    if roots is not None:
        # Check before the disk is read, because callers must not learn which paths exist elsewhere.
        roots.check(f"{where}, base_path", Path(path))
    try:
        is_there = Path(path).is_dir()
    except OSError:  # the path is too long
        is_there = False
    if not is_there:
        raise InputError(f"{where}, base_path", expected="a directory that is there", found=repr(path))


def _change(config: Any, before: ConfiguredChoices) -> Change:
    """Return the change that sets the pin and labels that a configuration names.

    The change removes the pin and the labels that only the previous configuration named. A policy `latest` removes any
    pin.
    """
    where = f"config of model {config.name!r}, model_version_policy"
    labels = dict(config.version_labels)
    if len(labels) > MOST_LABELS:
        raise InputError(where, expected=f"at most {MOST_LABELS} labels", found=len(labels))
    for label in labels:
        check_label(f"config of model {config.name!r}, version_labels", label)
    policy = config.model_version_policy
    if policy.HasField("all"):
        expected = "latest or specific: all versions of a training run would not fit into memory"
        raise InputError(where, expected=expected, found="all")
    if not policy.HasField("specific"):
        unpin = policy.HasField("latest") or before.pin
        latest = policy.latest.num_versions or None
        return Change(unpin=unpin, labels=labels, without={*before.labels} - labels.keys(), beside=(), latest=latest)
    versions = sorted(set(policy.specific.versions))
    if not versions or len(versions) > _MOST_RESIDENT:
        raise InputError(where, expected=f"from 1 to {_MOST_RESIDENT} specific versions", found=len(versions))
    *beside, pinned = versions
    return Change(pinned=pinned, labels=labels, without={*before.labels} - labels.keys(), beside=tuple(beside))
