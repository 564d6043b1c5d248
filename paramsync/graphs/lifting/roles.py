"""Which ops read a variable, pass it on, give it to functions or change it, and which ops keep a state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphdef.reading import bodies, called, control_inputs, data_inputs, every_node, node_of
from paramsync.graphs.nodes import definition


@dataclass(frozen=True, slots=True)
class Read:
    """How to replace an op whose first argument is a variable that it reads.

    The new op, `op`, takes the variable's value instead.

    `attributes` maps each attribute of `op` to the attribute of the old op that sets it; "" stands for the variable's
    dtype. `result` is the name of the old op's result. All new ops call their result "output".
    """

    op: str
    attributes: Mapping[str, str]
    result: str = "output"


READS = {
    "ReadVariableOp": Read("Identity", {"T": ""}, "value"),
    "ResourceGather": Read("GatherV2", {"Tparams": "", "Tindices": "Tindices", "batch_dims": "batch_dims"}),
    "ResourceGatherNd": Read("GatherNd", {"Tparams": "", "Tindices": "Tindices"}),
    "VariableShape": Read("Shape", {"T": "", "out_type": "out_type"}),
}

ALWAYS_TRUE = frozenset({"VarIsInitializedOp", "IsVariableInitialized"})  # these ops return True for every value

# Ops that pass a variable on, and the names of their results. The same ops for references have the prefix "Ref".
_PASSES = dict.fromkeys(
    ("Identity", "StopGradient", "PreventGradient", "Enter", "Exit", "NextIteration", "Merge"), ("output",)
) | {"Switch": ("output_false", "output_true")}

_SEEDS = (tf.int64, tf.uint32)  # dtypes of a SeedGenerator's state, in different versions of Keras


def is_seed(name: str, spec: tf.TensorSpec) -> bool:
    """Return whether this is the state of a Keras SeedGenerator: a counter that each draw increments."""
    last = name.rpartition("/")[2]
    return last.startswith("seed_generator_state") and spec.dtype in _SEEDS and spec.shape == [2]


def results_of_pass(op: str) -> tuple[str, ...]:
    """Return the names of the results by which an op passes a variable on; for other ops, an empty tuple."""
    return _PASSES.get(op.removeprefix("Ref"), ())


@dataclass(frozen=True, slots=True)
class CallingOp:
    """An op that calls functions, and the names of its attributes for the functions and for their dtypes.

    The arguments of the functions begin at input `first`. In a loop, results become the next arguments.
    """

    functions: tuple[str, ...]
    first: int
    arguments: str
    results: str
    stateless: str

    @property
    def loop(self) -> bool:
        return self.arguments == self.results


CALLS = {
    op: call
    for call in (
        CallingOp(("f",), 0, "Tin", "Tout", "PartitionedCall"),
        CallingOp(("cond", "body"), 0, "T", "T", "StatelessWhile"),
        CallingOp(("then_branch", "else_branch"), 1, "Tin", "Tout", "StatelessIf"),
        CallingOp(("branches",), 1, "Tin", "Tout", "StatelessCase"),
    )
    for op in (call.stateless, call.stateless.removeprefix("Stateless"))
} | {"StatefulPartitionedCall": CallingOp(("f",), 0, "Tin", "Tout", "PartitionedCall")}

_CHANGES = re.compile(r"Assign|Scatter|Apply|CountUpTo|Destroy|Restore|BoostedTrees")
_DRAWS = re.compile(r"^Stateful|^Rng|NonDeterministicInts")


def refusal(op: str, variable: str) -> str:
    """Say why an op cannot be lifted. The op takes a variable, but neither reads it nor passes it on."""
    if _CHANGES.search(op):
        return (
            f"changes variable {variable!r} whenever it predicts; leave it out of what the outputs need"
            " (a recurrent layer: stateful=False)"
        )
    if _DRAWS.search(op):
        return f"draws random numbers from variable {variable!r} and changes it; leave out what is for training only"
    return f"takes variable {variable!r}, and only reading a variable can be replaced by its value"


def functions(node: Any) -> list[str]:
    """Return the functions that a node calls, in the order of its attributes. The node's op must be in CALLS."""
    return [reference.name for reference in _references(node)]


def set_functions(node: Any, names: Sequence[str]) -> None:
    """Make the node call these functions instead."""
    for reference, name in zip(_references(node), names, strict=True):
        reference.name = name


def _references(node: Any) -> list[Any]:
    attributes = [node.attr[name] for name in CALLS[node.op].functions]
    return [reference for value in attributes for reference in (value.list.func or [value.func])]


# A served graph keeps nothing between calls, and prints nothing -------------------------------------------------------

# Ops that keep a state, other than parameters and tables, and what to do about them.
_REFUSALS = {
    re.compile(pattern): reason
    for pattern, reason in {
        r"Variable(V2)?|VarHandleOp|TemporaryVariable": "is a variable that is not among the parameters",
        r"(Multi|Anonymous|OneShot|Make)?\w*Iterator\w*|\w*Queue\w*|Barrier\w*|\w*Reader(V2)?|Reader(Read|Num)\w*|\w*Stage|"
        r"\w*Unstage\w*": "belongs to an input pipeline; name the tensors that it delivers as the inputs",
        r"\w*HashTable\w*": "is a lookup table whose contents are not known",
        r"LookupTable(Insert|Import|Remove)\w*|InitializeTable\w*": "changes a lookup table whenever it predicts; leave"
        " it out of what the outputs need",
        r"Write\w*Summary|\w*Summary\w*(Writer|Db|File)|ImportEvent": "writes a summary; leave it out of what the"
        " outputs need",
    }.items()
}

PRINTS = {"Print": "Identity", "PrintV2": "NoOp"}
"""Ops that print, and the ops that replace them."""


def purify(graph_def: Any) -> None:
    """Remove printing, and replace calls of stateless functions by stateless calls.

    Raises GraphError for an op that keeps a state.
    """
    for node in every_node(graph_def):
        if node.op in PRINTS:
            _silence(node)
    library = {function.signature.name: function.node_def for function in graph_def.library.function}
    refusals = {node.op: _refusal(node.op) for node in every_node(graph_def) if node.op not in library}
    for function, nodes in bodies(graph_def):
        for node in nodes:
            if reason := refusals.get(node.op):
                where = f" in function {function!r}" if function else ""
                raise GraphError(f"the graph cannot be made pure: {node.op} {node.name!r}{where} {reason}")
    stateful: dict[str, bool] = {}  # whether an op or function keeps a state, by name

    def is_stateful(node: Any) -> bool:
        names = called(node)
        return any(map(keeps_state, names[1:] if node.op in CALLS else names))

    def keeps_state(name: str) -> bool:
        if name not in stateful:
            if name in library:
                stateful[name] = any(map(is_stateful, library[name]))
            else:
                op = definition(name)
                stateful[name] = op is None or op.is_stateful  # None for an unknown op, which TensorFlow rejects later
        return stateful[name]

    for node in every_node(graph_def):
        if node.op in CALLS and not is_stateful(node):
            node.op = CALLS[node.op].stateless


def _silence(node: Any) -> None:
    """Replace a node that prints by an Identity of its input, or by a NoOp that waits for the same inputs."""
    node.op = PRINTS[node.op]
    passes = node.op == "Identity"
    read, waits = data_inputs(node), control_inputs(node)
    node.input[:] = [*read[:1], *waits] if passes else [*(f"^{node_of(tensor)}" for tensor in read), *waits]
    for name in set(node.attr) - ({"T"} if passes else set()):
        del node.attr[name]


def _refusal(op: str) -> str:
    """Say why a graph with this op cannot be pure; "" if it can."""
    return next((reason for pattern, reason in _REFUSALS.items() if pattern.fullmatch(op)), "")
