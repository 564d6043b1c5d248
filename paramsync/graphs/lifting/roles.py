"""What each op does with a variable that it is given: reads it, passes it on, hands it to functions, or changes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
_PASSES = {
    "Identity": ("output",),
    "StopGradient": ("output",),
    "PreventGradient": ("output",),
    "Enter": ("output",),
    "Exit": ("output",),
    "NextIteration": ("output",),
    "Merge": ("output",),
    "Switch": ("output_false", "output_true"),
}


_SEEDS = (tf.int64, tf.uint32)  # which of them depends on Keras' version


def is_seed(name: str, spec: tf.TensorSpec) -> bool:
    """Whether a variable is the state of a Keras SeedGenerator, which each draw counts up."""
    last = name.rpartition("/")[2]
    return last.startswith("seed_generator_state") and spec.dtype in _SEEDS and spec.shape == [2]


def results_of_pass(op: str) -> tuple[str, ...]:
    """The names of the results of an op, each of which is the variable that it is given; none if it is no such op."""
    return _PASSES.get(op.removeprefix("Ref"), ())


@dataclass(frozen=True, slots=True)
class Call:
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
    "PartitionedCall": Call(("f",), 0, "Tin", "Tout", "PartitionedCall"),
    "StatefulPartitionedCall": Call(("f",), 0, "Tin", "Tout", "PartitionedCall"),
    "While": Call(("cond", "body"), 0, "T", "T", "StatelessWhile"),
    "StatelessWhile": Call(("cond", "body"), 0, "T", "T", "StatelessWhile"),
    "If": Call(("then_branch", "else_branch"), 1, "Tin", "Tout", "StatelessIf"),
    "StatelessIf": Call(("then_branch", "else_branch"), 1, "Tin", "Tout", "StatelessIf"),
    "Case": Call(("branches",), 1, "Tin", "Tout", "StatelessCase"),
    "StatelessCase": Call(("branches",), 1, "Tin", "Tout", "StatelessCase"),
}

_CHANGES = re.compile(r"Assign|Scatter|Apply|CountUpTo|Destroy|Restore|BoostedTrees")
_DRAWS = re.compile(r"^Stateful|^Rng|NonDeterministicInts")


def refusal(op: str, variable: str) -> str:
    """What is wrong with an op that takes a variable and is none of the above."""
    if _CHANGES.search(op):
        return (
            f"changes variable {variable!r} whenever it predicts; leave it out of what the outputs need"
            " (a recurrent layer: stateful=False)"
        )
    if _DRAWS.search(op):
        return f"draws random numbers from variable {variable!r} and changes it; leave out what is for training only"
    return f"takes variable {variable!r}, and only reading a variable can be replaced by its value"


def functions(node: Any, call: Call) -> list[str]:
    """The functions that an op of CALLS calls, in the order of its attributes."""
    attributes = [node.attr[name] for name in call.functions]
    return [one.name for value in attributes for one in (value.list.func or [value.func])]


def set_functions(node: Any, call: Call, names: Sequence[str]) -> None:
    attributes = [node.attr[name] for name in call.functions]
    for one, name in zip(
        [one for value in attributes for one in (value.list.func or [value.func])], names, strict=True
    ):
        one.name = name


def definition(op: str) -> Any:
    """What TensorFlow says of an op; None for one that it does not know."""
    try:
        return _known_ops().op_def_for_type(op)
    except RuntimeError:
        return None


@cache
def _known_ops() -> tf.Graph:
    return tf.Graph()  # which knows them all, and holds none
