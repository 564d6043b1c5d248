"""duplicate() copies part of a live graph into a scope; synchronise() copies values between variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.specs import TensorSpec, check
from paramsync.graphs.surgery.arguments import (
    check_graph,
    check_scope,
    check_session,
    element,
    flatten,
    graph_of,
    normalise_device,
    operation_of,
    pack_like,
)
from paramsync.graphs.surgery.aside import Names, free_scope, make_aside
from paramsync.graphs.surgery.derived import bring
from paramsync.graphs.surgery.replacing import Replacements
from paramsync.graphs.surgery.selection import Selection
from paramsync.graphs.surgery.variables import for_saver, known, saved, saved_as, sizes, value_of
from paramsync.host.files import shown


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy in a live graph. `copy[x]` is the counterpart of a tensor, operation or variable of the source.

    `inputs` and `outputs` have the structure of duplicate()'s arguments; a single tensor becomes a tuple of one tensor.
    `variables` has the copy's own variables, `originals` the variables of the source, both by the names of the
    originals.
    """

    scope: str
    graph: tf.Graph
    inputs: Any
    outputs: Any
    variables: Mapping[str, tf.Variable]
    originals: Mapping[str, tf.Variable]
    _names: Names = field(repr=False)

    def __getitem__(self, item: Any) -> Any:
        """Return the counterpart of an item of the source. Raises GraphError if the item was not copied."""
        meant = element(self._names.source, item, f"the copy {self.scope!r}")
        if isinstance(meant, tf.Variable):
            if meant.op.name in self.variables:
                return self.variables[meant.op.name]
            meant = meant.op.outputs[0]
        name = self._names(meant.name)
        if name is None:
            raise GraphError(f"{meant.name!r} is not part of the copy {self.scope!r}: no output depends on it")
        return self.graph.as_graph_element(name)

    def saver(self, **arguments: Any) -> tf.compat.v1.train.Saver:
        """Return a Saver that restores checkpoints of the source into the copy: its keys are the originals' names.

        Like tf.train.Saver(), this Saver leaves out local variables. `arguments` are the arguments of tf.train.Saver,
        except `var_list`. Raises GraphError for a copy without variables to save.
        """
        variables = saved(self.graph, self.variables)
        if not variables:
            raise GraphError(f"saver: the copy {self.scope!r} has no variables of its own that a Saver would save")
        keys = {name: saved_as(name, self.originals[name])[0] for name in variables}
        with self.graph.as_default():
            return tf.compat.v1.train.Saver(for_saver(variables, keys), **arguments)


def duplicate(
    outputs: Any,
    inputs: Any = (),
    *,
    scope: str = "copy",
    variables: Literal["own", "shared"] = "own",
    replace: Mapping[Any, Any] | None = None,
    keep_seeds: bool = False,
    graph: tf.Graph | None = None,
    device: str | None = None,
) -> Copy:
    """Copy the operations between `inputs` and `outputs`, tensors or their names, into `scope`.

    Args:
        outputs: One tensor, or several in any structure of lists, tuples and dicts. The copy's outputs have the same
            structure.
        inputs: One tensor or a structure of tensors. Each becomes a placeholder.
        scope: The name scope of the copy. A number is added if the scope exists.
        variables: "own" for independent variables, which are added to the collections of their originals and must be
            initialised; "shared" for the originals.
        replace: Maps a tensor or variable of the source to the tensor, array or variable that takes its place.
        keep_seeds: Keep the seeds of random ops and initial values. By default each op gets a fresh seed.
        graph: The graph that the copy is added to; by default the source's graph.
        device: The device of all copied operations, "" for any; by default each has the device of its original.

    Raises GraphError if a name is unknown, if no output depends on one of the inputs, if the outputs need a placeholder
    that is not among the inputs, or if a replacement does not fit. An error leaves all graphs unchanged.
    """
    wanted, fed, replaced = flatten(outputs), flatten(inputs), replace or {}
    if not wanted:
        raise GraphError("outputs: expected outputs to copy, found none")
    check_scope(scope)
    device = normalise_device(device)
    source = graph_of({"outputs": wanted, "inputs": fed, "replace": list(replaced)})
    target = source if graph is None else graph
    check_graph(target)
    if variables not in ("own", "shared"):
        raise GraphError(f"variables: expected 'own' or 'shared', found {shown(variables)}")
    if variables == "shared" and target is not source:
        raise GraphError("variables: expected 'own', since graphs share no variables, found 'shared'")
    own = variables == "own"
    with source.as_default():
        ends = [value_of(element(source, tensor, "outputs")) for tensor in wanted]
        replacements = Replacements(source, target, fed, replaced)
        selection = _select(source, target, replacements, ends, own=own)
    scope = free_scope(target, scope)
    aside = make_aside(selection, replacements, scope=scope, device=device, keep_seeds=keep_seeds)
    names, copies = bring(aside, target)
    _collect(source, target, scope, copies, names.copied if own else names.copied & selection.dependent())
    return Copy(
        scope=scope,
        graph=target,
        inputs=pack_like(inputs, (target.as_graph_element(names(tensor.name)) for tensor in replacements.inputs)),
        outputs=pack_like(outputs, (target.as_graph_element(names(tensor.name)) for tensor in ends)),
        variables=copies,
        originals={name: variable.variable for name, variable in selection.variables.items()},
        _names=names,
    )


def _select(source: tf.Graph, target: tf.Graph, replacements: Replacements, ends: list[Any], *, own: bool) -> Selection:
    selection = Selection(
        source, replacements.given, values=replacements.valued, own_variables=own, same_graph=target is source
    )
    selection.walk(ends)
    selection.check_read(ends)
    if own:
        selection.add_initialisers()
        selection.add_beside()
        selection.add_initialisers()  # again, because add_beside() may have selected more variables
    return selection


_KEYS = tf.compat.v1.GraphKeys
# TensorFlow reads only the first member of these collections. So a member of the copy is added only to an empty
# collection.
_SINGLE = frozenset(
    {
        _KEYS.GLOBAL_STEP,
        _KEYS.INIT_OP,
        _KEYS.LOCAL_INIT_OP,
        _KEYS.READY_OP,
        _KEYS.READY_FOR_LOCAL_INIT_OP,
        _KEYS.SUMMARY_OP,
    }
)


def _collect(
    source: tf.Graph, target: tf.Graph, scope: str, variables: Mapping[str, tf.Variable], operations: Collection[str]
) -> None:
    """Add the copies of variables and operations to the collections of their originals."""
    for key in source.get_all_collection_keys():
        if key in _SINGLE and target.get_collection(key):
            continue
        for member in source.get_collection(key):
            operation = operation_of(member)
            if operation is None:
                continue
            copy: Any = variables.get(operation.name) if isinstance(member, tf.Variable) else None
            if copy is None and operation.name in operations:
                name = member.name if isinstance(member, tf.Tensor) else operation.name
                copy = target.as_graph_element(f"{scope}/{name}")
            if copy is not None:
                target.add_to_collection(key, copy)


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """Assignments of the source's values to the target; `run` runs them.

    Within one graph, running `op` is enough. Between two graphs, read `reads` first and feed the values to `feeds`.
    """

    op: tf.Operation
    reads: tuple[tf.Tensor, ...]
    feeds: tuple[tf.Tensor, ...]

    def run(self, session: tf.compat.v1.Session, target_session: tf.compat.v1.Session | None = None) -> None:
        """Synchronise once. `session` is the source's session; a single run of this session reads all values."""
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
    """Build the assignments that copy the values of the source's variables to the target's variables.

    Source and target are each a Copy, variables by name, or a sequence of variables, which are paired by position. If
    the source is a tf.Graph, each variable of the target is paired with the variable of the same name in the graph. The
    variables of a Copy count under the names of their originals.
    Raises ParameterError if a variable has no counterpart of the same dtype and shape, GraphError for no variables.
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
