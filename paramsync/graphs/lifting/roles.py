"""What each op does with a variable that it is given: reads it, passes it on, hands it to functions, or changes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

REFERENCES = frozenset({"Variable", "VariableV2"})  # give a reference, which reads like a value already


@dataclass(frozen=True, slots=True)
class Read:
    """An op that reads the variable that is its first argument; `op` does the same to a value.

    `attributes` are those of the new op: taken from the old op's attribute of that name, or for "" the variable's
    dtype. `result` is what the old op calls its result; the new ones all say "output".
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

ALWAYS_TRUE = frozenset({"VarIsInitializedOp", "IsVariableInitialized"})  # of a value
WITHOUT_RESULT = frozenset({"DisableCopyOnRead"})  # about how the variable is kept, not what it holds

# Ops that pass a variable on: the names of their results. Those for references are called the same after "Ref".
_PASSES = dict.fromkeys(
    ("Identity", "StopGradient", "PreventGradient", "Enter", "Exit", "NextIteration", "Merge"), ("output",)
) | {"Switch": ("output_false", "output_true")}

_SEEDS = (tf.int64, tf.uint32)  # which of them depends on Keras' version


def is_seed(name: str, spec: tf.TensorSpec) -> bool:
    """Whether a variable is the state of a Keras SeedGenerator, which each draw counts up."""
    last = name.rpartition("/")[2]
    return last.startswith("seed_generator_state") and spec.dtype in _SEEDS and spec.shape == [2]


def results_of_pass(op: str) -> tuple[str, ...]:
    """The names of the results of an op, each of which is the variable that it is given; none if it is no such op."""
    return _PASSES.get(op.removeprefix("Ref"), ())


@dataclass(frozen=True, slots=True)
class CallingOp:
    """An op that calls functions: the attributes that name them, and those that list the types of what it passes.

    The arguments begin at input `first`. In a loop the results of the function are its next arguments.
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
    """Why an op that takes a variable, and is none of the above, cannot be lifted."""
    if _CHANGES.search(op):
        return (
            f"changes variable {variable!r} whenever it predicts; leave it out of what the outputs need"
            " (a recurrent layer: stateful=False)"
        )
    if _DRAWS.search(op):
        return f"draws random numbers from variable {variable!r} and changes it; leave out what is for training only"
    return f"takes variable {variable!r}, and only reading a variable can be replaced by its value"


def functions(node: Any) -> list[str]:
    """The functions that a node whose op is in CALLS calls, in the order of its attributes."""
    return [reference.name for reference in _references(node)]


def set_functions(node: Any, names: Sequence[str]) -> None:
    """Have the node call these functions instead."""
    for reference, name in zip(_references(node), names, strict=True):
        reference.name = name


def _references(node: Any) -> list[Any]:
    attributes = [node.attr[name] for name in CALLS[node.op].functions]
    return [reference for value in attributes for reference in (value.list.func or [value.func])]
