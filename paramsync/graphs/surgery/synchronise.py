"""synchronise(): assigns variables the values of others, in one graph or from one session to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError, ParameterError
from paramsync.graphs.surgery.arguments import check_graph, check_session
from paramsync.graphs.surgery.duplicate import Copy
from paramsync.graphs.surgery.variables import known, value_of
from paramsync.host.files import shown


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """Running `op` gives the target the source's values. Between two graphs, `feeds` take what `reads` give."""

    op: tf.Operation
    reads: tuple[tf.Tensor, ...]
    feeds: tuple[tf.Tensor, ...]

    def run(self, session: tf.compat.v1.Session, target_session: tf.compat.v1.Session | None = None) -> None:
        """Synchronise once: all values are those of one moment between two runs of `session`, the source's."""
        check_session(session, self.reads[0].graph, "session")
        if not self.feeds:
            if target_session is not None and target_session is not session:
                raise GraphError("target_session: source and target are of one graph: expected none, found one")
            _run(session, "session", self.op)
            return
        if target_session is None:
            raise GraphError(
                "target_session: source and target are of two graphs: expected a session of each, found one"
            )
        check_session(target_session, self.op.graph, "target_session")
        values = _run(session, "session", self.reads)
        _run(target_session, "target_session", self.op, dict(zip(self.feeds, values, strict=True)))


def synchronise(source: Any, target: Any) -> Synchronisation:
    """Build the assignments that give the target's variables the values of the source's.

    Each is a Copy, variables by name, or variables in a sequence, the first for the first. A tf.Graph as
    source stands for those of its variables that the target has a name for, as a Copy has for its originals. Raises
    ParameterError where a variable has no counterpart, or one of another dtype or shape, GraphError for no variables.
    """
    takers = _named(target, "target")
    givers = _named(source, "source")
    if isinstance(source, tf.Graph):
        givers = {name: variable for name, variable in givers.items() if name in takers}
    if not takers:
        raise GraphError("target: expected variables, found none")
    if givers.keys() != takers.keys():
        raise ParameterError("the source", expected=_listed(takers), found=_listed(givers))
    for name, taker in takers.items():
        if givers[name].dtype.base_dtype != taker.dtype.base_dtype or givers[name].shape != taker.shape:
            raise ParameterError(f"the source, {name!r}", expected=_described(taker), found=_described(givers[name]))
    origin, copy = _graph(givers, "source"), _graph(takers, "target")
    check_graph(copy, "target")
    reads = [value_of(givers[name]) for name in takers]
    with copy.as_default(), tf.compat.v1.name_scope("synchronise"), copy.control_dependencies(None):
        feeds = (
            [] if origin is copy else [tf.compat.v1.placeholder(variable.dtype, variable.shape) for variable in reads]
        )
        values = zip(takers.values(), feeds or reads, strict=True)
        assignments = [tf.compat.v1.assign(taker, value).op for taker, value in values]
        return Synchronisation(op=tf.group(*assignments), reads=tuple(reads), feeds=tuple(feeds))


def _named(variables: Any, what: str) -> Mapping[Any, tf.Variable]:
    if isinstance(variables, Copy):
        return variables.variables
    if isinstance(variables, tf.Graph):
        return known(variables)
    if isinstance(variables, tf.Variable):
        variables = [variables]
    if not isinstance(variables, Mapping | list | tuple):
        raise GraphError(
            f"{what}: expected a copy, variables by name, a sequence of variables or a tf.Graph, found"
            f" {shown(variables)}"
        )
    by_name = dict(variables) if isinstance(variables, Mapping) else dict(enumerate(variables))
    for variable in by_name.values():
        if not isinstance(variable, tf.Variable) or not isinstance(getattr(variable, "graph", None), tf.Graph):
            raise GraphError(f"{what}: expected variables of a graph, found {shown(variable)}")
    return by_name


def _graph(variables: Mapping[Any, tf.Variable], what: str) -> tf.Graph:
    graphs = {variable.graph for variable in variables.values()}
    if len(graphs) > 1:
        raise GraphError(f"{what}: the variables are of several graphs: expected those of one on each side")
    return graphs.pop()


def _run(session: tf.compat.v1.Session, what: str, *arguments: Any) -> Any:
    try:
        return session.run(*arguments)
    except RuntimeError as error:  # which TensorFlow's own errors are not
        raise GraphError(f"{what}: it cannot run, as one that was closed: {error}") from error


def _listed(variables: Mapping[Any, tf.Variable]) -> str:
    names = [key if isinstance(key, str) else variables[key].op.name for key in variables]
    return f"{len(names)} variables: {', '.join(sorted(names))}" if names else "no variables"


def _described(variable: tf.Variable) -> str:
    return f"{variable.dtype.base_dtype.name} {variable.shape}"
