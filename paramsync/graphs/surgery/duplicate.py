"""duplicate(): what leads to some outputs of a live graph, once more, in a scope of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery.contexts import inside
from paramsync.graphs.surgery.handles import describe
from paramsync.graphs.surgery.inline import inline
from paramsync.graphs.surgery.library import library_of, set_apart
from paramsync.graphs.surgery.membership import join
from paramsync.graphs.surgery.naming import check_scope, element, graph_of, listed
from paramsync.graphs.surgery.nodes import Nodes
from paramsync.graphs.surgery.replacing import Replacements
from paramsync.graphs.surgery.seeds import identifier, refresh
from paramsync.graphs.surgery.selection import Selection
from paramsync.graphs.surgery.variables import for_saver, saved_as


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy in a live graph. `copy[x]` is what a tensor, operation or variable of the source became there.

    `inputs` and `outputs` come in the order they were asked for. `variables` are the copy's own, `originals` those of
    the source, both by the names of the originals.
    """

    scope: str
    graph: tf.Graph
    inputs: tuple[tf.Tensor, ...]
    outputs: tuple[Any, ...]
    variables: Mapping[str, tf.Variable]
    originals: Mapping[str, tf.Variable]
    _names: _Names = field(repr=False)

    def __getitem__(self, one: Any) -> Any:
        """Raises GraphError for what is not part of the copy."""
        found = element(self._names.source, one)
        if isinstance(found, tf.Variable):
            if found.op.name in self.variables:
                return self.variables[found.op.name]
            found = found.op.outputs[0]
        name = self._names(found.name)
        if name is None:
            raise GraphError(f"{found.name!r} is not part of the copy {self.scope!r}: no output depends on it")
        return self.graph.as_graph_element(name)

    def saver(self, **arguments: Any) -> tf.compat.v1.train.Saver:
        """A Saver of the copy's variables under the names of the originals: it restores checkpoints of the source."""
        keys = {name: saved_as(name, original)[0] for name, original in self.originals.items()}
        with self.graph.as_default():
            return tf.compat.v1.train.Saver(for_saver(self.variables, keys), **arguments)


@dataclass(frozen=True, slots=True)
class _Names:
    """From names of tensors or operations in the source to those in the copy's graph; None for what is not there."""

    source: tf.Graph
    scope: str
    replaced: Mapping[str, str]
    copied: frozenset[str]
    kept: frozenset[str]

    def __call__(self, name: str) -> str | None:
        if name in self.replaced:
            return self.replaced[name]
        operation = name.partition(":")[0]
        if operation in self.copied:
            return f"{self.scope}/{name}"
        return name if operation in self.kept else None


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
    """Copy what leads from `inputs` to `outputs`, tensors or names of tensors, into `scope`.

    Each of `inputs` becomes a placeholder, and each key of `replace`, a tensor or a variable, becomes the tensor or
    variable given for it. The copy goes to `graph`, or stays in the source's; it runs on `device`, or where its source
    does. Own variables are independent: each is in the collections that its original is in, and is to be initialised.
    Shared ones are the originals. Random ops get fresh seeds, initial values with them, unless `keep_seeds` is given.

    Raises GraphError where a name is unknown, no output depends on an input, a placeholder would be left unfed, or a
    replacement does not fit.
    """
    replace = dict(replace or {})
    wanted = listed(outputs)
    if not wanted:
        raise GraphError("expected outputs to copy, found none")
    check_scope(scope)
    source = graph_of([*wanted, *listed(inputs), *replace])
    target = source if graph is None else graph
    if variables not in ("own", "shared") or (variables == "shared" and target is not source):
        allowed = "'own' or 'shared'" if target is source else "'own', since graphs share no variables"
        raise GraphError(f"variables: expected {allowed}, found {variables!r}")
    with source.as_default():
        ends = [_end(element(source, one)) for one in wanted]
        replacements = Replacements(source, target, listed(inputs), replace)
        selection = _select(source, target, replacements, ends, own=variables == "own")
    with target.as_default(), tf.compat.v1.name_scope(None), target.control_dependencies(None), target.device(None):
        scope = target.unique_name(scope)
        with target.device(device):
            replacements.make(scope, selection.operations)
        names = _paste(selection, replacements, scope=scope, device=device, keep_seeds=keep_seeds)
    originals = {name: found.variable for name, found in selection.variables.items()}
    copies = {name: found.copy_to(target, names, scope) for name, found in selection.variables.items()}
    for context in selection.contexts:
        context.copy_to(target, names, scope)
    joining = names.copied if variables == "own" else names.copied & selection.dependent()
    join(source, target, variables=copies, operations=joining, name_in_copy=lambda name: f"{scope}/{name}")
    return Copy(
        scope=scope,
        graph=target,
        inputs=tuple(target.as_graph_element(names(one.name)) for one in replacements.inputs),
        outputs=tuple(target.as_graph_element(names(one.name)) for one in ends),
        variables=copies,
        originals=originals,
        _names=names,
    )


def _end(found: Any) -> tf.Tensor | tf.Operation:
    return found.value() if isinstance(found, tf.Variable) else found


def _select(source: tf.Graph, target: tf.Graph, replacements: Replacements, ends: list[Any], *, own: bool) -> Selection:
    """What to copy. A tensor to replace that nobody reads, being a variable's value, means the variable."""
    while True:
        selection = Selection(
            source, replacements.given, values=replacements.valued, own_variables=own, same_graph=target is source
        )
        selection.walk(ends)
        if not replacements.mean_variables(selection.unread(ends)):
            break
    selection.check_read(ends)
    if own:
        selection.add_what_initialises()
        selection.add_beside()
        selection.add_what_initialises()
    return selection


def _paste(
    selection: Selection, replacements: Replacements, *, scope: str, device: str | None, keep_seeds: bool
) -> _Names:
    """Import the nodes, into the default graph."""
    target = tf.compat.v1.get_default_graph()
    operations = selection.operations
    functions = library_of(selection.graph, operations.values())
    nodes = Nodes(
        operations.values(),
        scope=scope,
        device=device,
        replaced=replacements.tensors,
        values=replacements.values,
        kept=selection.kept,
        library=functions,
    )
    suffix = identifier(scope)
    inline(nodes.graph_def, suffix, whole={f"{scope}/{name}" for name in inside(selection.contexts)})
    describe(nodes.graph_def, nodes.input_map, suffix)
    if not keep_seeds:
        refresh(nodes.graph_def, scope)
    set_apart(nodes.graph_def)
    try:
        tf.graph_util.import_graph_def(nodes.graph_def, input_map=nodes.input_map, name="")
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise GraphError(f"the copy cannot be built: {error}") from error
    made = {**replacements.tensors, **{f"{name}:0": value for name, value in replacements.values.items()}}
    copied = frozenset(operations) - replacements.values.keys()
    if replacements.refine():  # what people declared about shapes is in no node
        for name in copied:
            for tensor in operations[name].outputs:
                copy = target.get_tensor_by_name(f"{scope}/{tensor.name}")
                if copy.dtype == tensor.dtype:  # not where a value took the place of a handle
                    copy.set_shape(tensor.shape)
    return _Names(
        source=selection.graph,
        scope=scope,
        replaced={name: tensor.name for name, tensor in made.items()},
        copied=copied,
        kept=frozenset(selection.kept),
    )
