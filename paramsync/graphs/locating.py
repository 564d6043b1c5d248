"""Locating: where the parameters of a graph are in a checkpoint, and whether they fit. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from paramsync import dtypes
from paramsync.checkpoint.reader import Bundle
from paramsync.errors import ParameterError
from paramsync.graphs.specs import Shape, TensorSpec, described
from paramsync.host.files import shown

_SHOWN = 8  # names in a message

KeysOf = Callable[[Bundle, list[str], Mapping[str, str]], dict[str, str]]
"""The keys of names that are none themselves, as far as they are found."""


class Wanting(Protocol):
    """What a graph says of its parameters."""

    @property
    def parameters(self) -> Sequence[TensorSpec]: ...

    @property
    def called(self) -> Mapping[str, str]:
        """What the framework calls the variable of each, where that is known."""


def located(
    graph: Wanting, bundle: Bundle, *, where: str | None = None, keys_of: KeysOf = lambda *_: {}
) -> tuple[str, ...]:
    """The key of each parameter, in the order of `graph.parameters`, in a checkpoint that has all of them.

    Raises ParameterError for what is not there, does not fit or could be one of several; no data is read before.
    """
    names = [spec.name for spec in graph.parameters]
    keys = {name: name for name in names}
    if not all(name in bundle.entries for name in names):
        keys |= keys_of(bundle, names, graph.called)
    found = {**bundle.entries, **{name: bundle.entries[key] for name, key in keys.items() if key in bundle.entries}}
    check(graph, found, lambda one: (dtypes.name(one.dtype), one.shape), where=where or str(bundle.prefix))
    return tuple(keys[name] for name in names)


def check(
    graph: Wanting,
    found: Mapping[str, Any],
    kind: Callable[[Any], tuple[str, Shape]],
    *,
    where: str,
    extra: Iterable[str] = (),
) -> None:
    """Raise ParameterError where what was found, of this `kind`, is not what the graph needs."""
    missing = [spec.name for spec in graph.parameters if spec.name not in found]
    if missing:
        there = _some([*found, *extra])
        raise ParameterError(where, expected=f"{_some(missing)} ({len(missing)} missing)", found=there)
    if extra := list(extra):
        expected = _some(spec.name for spec in graph.parameters)
        raise ParameterError(where, expected=expected, found=f"{_some(extra)} too ({len(extra)} not needed)")
    wrong = []
    for spec in graph.parameters:
        dtype, shape = kind(found[spec.name])
        if shape is None or not spec.accepts(dtype, [-1 if size is None else size for size in shape]):
            wrong.append((f"{_readable(spec.name)} {spec}", described(dtype, shape)))
    if wrong:
        more = f" ({len(wrong)} differ)" if len(wrong) > 1 else ""
        raise ParameterError(
            where,
            expected=", ".join(one for one, _ in wrong[:_SHOWN]) + more,
            found=", ".join(one for _, one in wrong[:_SHOWN]),
        )


def _readable(name: str) -> str:
    return name if name.isprintable() else shown(name)


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return f"{', '.join(map(_readable, listed[:_SHOWN])) or 'nothing'}{' and more' if len(listed) > _SHOWN else ''}"
