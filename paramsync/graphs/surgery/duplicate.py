"""duplicate(): copies what leads to some outputs of a live graph into a scope of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.surgery.arguments import (
    check_choice,
    check_graph,
    check_scope,
    checked_device,
    checked_mapping,
    element,
    flat,
    graph_of,
    like,
    operation_of,
)
from paramsync.graphs.surgery.aside import Names, free_scope, make_aside
from paramsync.graphs.surgery.derived import bring
from paramsync.graphs.surgery.replacing import Replacements
from paramsync.graphs.surgery.selection import Selection
from paramsync.graphs.surgery.variables import for_saver, saved, saved_as, value_of
from paramsync.host.files import shown


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy in a live graph. `copy[x]` is what a tensor, operation or variable of the source became there.

    `inputs` and `outputs` have the structure that they were asked for in, a tuple of one where that was but one.
    `variables` are the copy's own, `originals` those of the source, both by the names of the originals.
    """

    scope: str
    graph: tf.Graph
    inputs: Any
    outputs: Any
    variables: Mapping[str, tf.Variable]
    originals: Mapping[str, tf.Variable]
    _names: Names = field(repr=False)

    def __getitem__(self, item: Any) -> Any:
        """Raises GraphError for what is not part of the copy."""
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
        """A Saver of the copy's variables under the names of the originals: it restores checkpoints of the source.

        As tf.train.Saver() it leaves local variables out, and takes `arguments`, those but `var_list`. Raises
        GraphError where there is nothing to save.
        """
        variables = saved(self.graph, self.variables)
        if not variables:
            raise GraphError(f"saver: the copy {self.scope!r} has no variables of its own that a Saver would save")
        if "var_list" in arguments:
            raise GraphError("saver: expected other arguments than var_list, which is the copy's variables")
        if not isinstance(arguments.get("name"), str | None):
            raise GraphError(f"saver: expected a word for its name, found {shown(arguments['name'])}")
        check_graph(self.graph, "saver")
        keys = {name: saved_as(name, self.originals[name])[0] for name in variables}
        try:
            with self.graph.as_default():
                return tf.compat.v1.train.Saver(for_saver(variables, keys), **arguments)
        except (ValueError, TypeError) as error:
            raise GraphError(
                f"saver: expected arguments of tf.compat.v1.train.Saver, found {shown(arguments)}: {error}"
            ) from error


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
    variable given for it. Several inputs or outputs come in any structure of lists, tuples and dicts, which the copy's
    have too. The copy goes to `graph`, or stays in the source's; it runs on `device`, anywhere if that is "", or where
    its source does. Own variables are independent: each is in the collections that its original is in, and is to be
    initialised. Shared ones are the originals. Random ops get fresh seeds, initial values with them, unless
    `keep_seeds` is given.

    Raises GraphError where a name is unknown, no output depends on an input, a placeholder would be left unfed, or a
    replacement does not fit. Nothing is added to a graph then.
    """
    wanted, fed = flat(outputs, "outputs"), flat(inputs, "inputs")
    replaced = checked_mapping(replace, "replace", "replacements by tensor or variable")
    if not wanted:
        raise GraphError("outputs: expected outputs to copy, found none")
    check_scope(scope)
    check_choice(keep_seeds, "keep_seeds", (True, False))
    device = checked_device(device)
    source = graph_of({"outputs": wanted, "inputs": fed, "replace": list(replaced)})
    target = source if graph is None else graph
    check_graph(target)
    check_choice(variables, "variables", ("own", "shared") if target is source else ("own",))
    with source.as_default():
        ends = [value_of(element(source, tensor, "outputs")) for tensor in wanted]
        replacements = Replacements(source, target, fed, replaced)
        selection = _select(source, target, replacements, ends, own=variables == "own")
    scope = free_scope(target, scope)
    aside = make_aside(selection, replacements, scope=scope, device=device, keep_seeds=keep_seeds)
    names, copies = bring(aside, target)
    _collect(
        source, target, scope, copies, names.copied if variables == "own" else names.copied & selection.dependent()
    )
    return Copy(
        scope=scope,
        graph=target,
        inputs=like(inputs, (target.as_graph_element(names(tensor.name)) for tensor in replacements.inputs)),
        outputs=like(outputs, (target.as_graph_element(names(tensor.name)) for tensor in ends)),
        variables=copies,
        originals={name: variable.variable for name, variable in selection.variables.items()},
        _names=names,
    )


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


_KEYS = tf.compat.v1.GraphKeys
# Hold one thing a graph: a second one would hide the first.
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
    """Add to the collections of `target` the copies of `variables`, by original, and of `operations` of `source`."""
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
