"""synchronise(): some variables take the values of others, in one graph or from one graph's session to another's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError, ParameterError
from paramsync.graphs.surgery.duplicate import Copy
from paramsync.graphs.surgery.variables import known


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """Running `op` gives the target the source's values. Between two graphs, `feeds` take what `reads` give."""

    op: tf.Operation
    reads: tuple[tf.Tensor, ...]
    feeds: tuple[tf.Tensor, ...]

    def run(self, session: tf.compat.v1.Session, target_session: tf.compat.v1.Session | None = None) -> None:
        """Synchronise once: all values are those of one moment between two runs of `session`, the source's."""
        if not self.feeds:
            session.run(self.op)
            return
        if target_session is None:
            raise GraphError("source and target are of two graphs: expected a session of each, found one")
        values = session.run(self.reads)
        target_session.run(self.op, dict(zip(self.feeds, values, strict=True)))


def synchronise(source: Any, target: Any) -> Synchronisation:
    """What gives the target's variables the values of the source's.

    Each is a Copy, variables by name, or variables in a sequence, the first for the first. A tf.Graph as
    source stands for those of its variables that the target has a name for, as a Copy has for its originals. Raises
    ParameterError where a variable has no counterpart, or one of another dtype or shape.
    """
    takers = _named(target)
    givers = _named(source)
    if isinstance(source, tf.Graph):
        givers = {name: one for name, one in givers.items() if name in takers}
    if not takers or givers.keys() != takers.keys():
        raise ParameterError("the source", expected=_listed(takers), found=_listed(givers))
    for name, taker in takers.items():
        if givers[name].dtype.base_dtype != taker.dtype.base_dtype or givers[name].shape != taker.shape:
            raise ParameterError(f"the source, {name!r}", expected=_described(taker), found=_described(givers[name]))
    origin, copy = _graph(givers), _graph(takers)
    with origin.as_default(), tf.compat.v1.name_scope("synchronise"), origin.control_dependencies(None):
        reads = [givers[name].read_value() for name in takers]
    with copy.as_default(), tf.compat.v1.name_scope("synchronise"), copy.control_dependencies(None):
        feeds = [] if origin is copy else [tf.compat.v1.placeholder(one.dtype, one.shape) for one in reads]
        values = zip(takers.values(), feeds or reads, strict=True)
        assignments = [tf.compat.v1.assign(taker, value).op for taker, value in values]
        return Synchronisation(op=tf.group(*assignments), reads=tuple(reads), feeds=tuple(feeds))


def _named(variables: Any) -> Mapping[Any, tf.Variable]:
    if isinstance(variables, Copy):
        return variables.variables
    if isinstance(variables, tf.Graph):
        return known(variables)
    return variables if isinstance(variables, Mapping) else dict(enumerate(variables))


def _graph(variables: Mapping[Any, tf.Variable]) -> tf.Graph:
    graphs = {one.graph for one in variables.values()}
    if len(graphs) > 1:
        raise GraphError("the variables to synchronise are of several graphs: expected those of one on each side")
    return graphs.pop()


def _listed(variables: Mapping[Any, tf.Variable]) -> str:
    names = [one if isinstance(one, str) else variables[one].op.name for one in variables]
    return f"{len(names)} variables: {', '.join(sorted(names))}" if names else "no variables"


def _described(variable: tf.Variable) -> str:
    return f"{variable.dtype.base_dtype.name} {variable.shape}"
