"""Fresh random seeds for copied nodes.

A fresh seed follows from the old one and the names of the scope and the node: the same program makes the same copy, and
no two copies have a seed in common. Where both seeds are 0, TensorFlow draws one for each session, which is fresh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

# Where the ops that compute from a given seed take it; most such ops of today get key and counter from these.
_SEED_INPUTS = {
    "StatelessRandomGetKeyCounter": 0,
    "StatelessRandomGetKeyCounterAlg": 0,
    "StatelessRandomUniform": 1,
    "StatelessRandomUniformInt": 1,
    "StatelessRandomUniformFullInt": 1,
    "StatelessRandomNormal": 1,
    "StatelessTruncatedNormal": 1,
    "StatelessMultinomial": 2,
    "StatelessRandomBinomial": 1,
    "StatelessRandomGammaV2": 1,
    "StatelessRandomPoisson": 1,
    "StatelessParameterizedTruncatedNormal": 1,
}


def has_seed(node: Any) -> bool:
    """Whether the node draws numbers that follow from a seed."""
    return node.op in _SEED_INPUTS or bool(_seed(node, "seed") or _seed(node, "seed2"))


def refresh(nodes: Iterable[Any], place: str, *, in_function: bool) -> list[Any]:
    """Give the nodes of a graph or a function other seeds, which follow from `place`. Returns constants to add."""
    output = ":output:0" if in_function else ""
    constants = {node.name + output: node for node in nodes if node.op == "Const"}
    added = []
    for node in nodes:
        if node.op in _SEED_INPUTS:
            at = _SEED_INPUTS[node.op]
            constant = constants.get(node.input[at] if in_function else node.input[at].removesuffix(":0"))
            if constant is not None:  # a seed that is computed, or an input, is its caller's affair
                seed = type(node)()
                seed.CopyFrom(constant)
                seed.name = f"{node.name}/fresh_seed"
                old = tf.make_ndarray(constant.attr["value"].tensor)
                fresh = [_fresh(int(number), i, f"{place}/{node.name}") for i, number in enumerate(old.flat)]
                seed.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(fresh, old.dtype, shape=old.shape))
                node.input[at] = seed.name + output
                added.append(seed)
        elif has_seed(node):
            node.attr["seed2"].i = _fresh(_seed(node, "seed2"), _seed(node, "seed"), f"{place}/{node.name}")
    return added


def _seed(node: Any, name: str) -> int:
    return int(node.attr[name].i) if "seed2" in node.attr and name in node.attr else 0


def _fresh(seed: int, other: int, place: str) -> int:
    drawn = hashlib.sha256(f"{seed} {other} {place}".encode()).digest()
    return int.from_bytes(drawn[:4], "little") & 0x7FFFFFFF or 1  # TensorFlow takes a zero for none
