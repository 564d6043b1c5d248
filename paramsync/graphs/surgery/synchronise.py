"""synchronise(): assigns variables the values of others, in one graph or from one session to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.specs import TensorSpec, check
from paramsync.graphs.surgery.arguments import check_graph, check_session
from paramsync.graphs.surgery.duplicate import Copy
from paramsync.graphs.surgery.variables import known, sizes, value_of


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """Running `op` gives the target the source's values. Between two graphs, feed `feeds` the values of `reads`."""

    op: tf.Operation
    reads: tuple[tf.Tensor, ...]
    feeds: tuple[tf.Tensor, ...]

    def run(self, session: tf.compat.v1.Session, target_session: tf.compat.v1.Session | None = None) -> None:
        """Synchronise once. All values are of one moment between two runs of `session`, the source's session."""
        check_session(session, self.reads[0].graph, "session")
        if not self.feeds:
            if target_session is not None and target_session is not session:
                raise GraphError("target_session: source and target are of one graph: expected none, found one")
            session.run(self.op)
            return
        if target_session is None:
            raise GraphError(
                "target_session: source and target are of two graphs: expected a session of each, found one"
            )
        check_session(target_session, self.op.graph, "target_session")
        values = session.run(self.reads)
        target_session.run(self.op, dict(zip(self.feeds, values, strict=True)))


def synchronise(
    source: Copy | tf.Graph | Mapping[str, tf.Variable] | Sequence[tf.Variable],
    target: Copy | Mapping[str, tf.Variable] | Sequence[tf.Variable],
) -> Synchronisation:
    """Build the assignments that give the target's variables the values of the source's.

    Source and target are each a Copy, variables by name, or variables in a sequence, paired by position. A tf.Graph as
    source stands for those of its variables that the target has a name for: the originals of a Copy. Raises
    ParameterError where a variable has no counterpart, or one of another dtype or shape, GraphError for no variables.
    """
    takers, givers = _by_name(target), _by_name(source)
    if not takers:
        raise GraphError("target: expected variables, found none")
    if isinstance(source, tf.Graph):
        givers = {name: variable for name, variable in givers.items() if name in takers}
    specs = [TensorSpec(name, taker.dtype.base_dtype.name, sizes(taker.shape)) for name, taker in takers.items()]
    extra = [name for name in givers if name not in takers]
    check(specs, givers, lambda one: (one.dtype.base_dtype.name, sizes(one.shape)), where="the source", extra=extra)
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


def _by_name(variables: Any) -> dict[str, tf.Variable]:
    if isinstance(variables, Copy):
        variables = variables.variables
    if isinstance(variables, tf.Graph):
        return known(variables)
    if isinstance(variables, Mapping):
        return dict(variables)
    return {f"variable {position}": variable for position, variable in enumerate(variables, 1)}


def _graph(variables: Mapping[str, tf.Variable], what: str) -> tf.Graph:
    graphs = {variable.graph for variable in variables.values()}
    if len(graphs) > 1:
        raise GraphError(f"{what}: the variables are of several graphs: expected those of one on each side")
    return graphs.pop()
