"""Fresh random seeds for copied nodes, in the functions they call too.

A fresh seed follows from the old one and the names of the scope and the node: the same program makes the same copy, and
no two copies have a seed in common. Where both seeds are 0, TensorFlow draws one for each session, which is fresh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from paramsync.graphdef.reading import called, rename_calls

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


def refresh(graph_def: Any, scope: str) -> None:
    """Give the nodes of `graph_def` other seeds, and functions with seeds other names; both follow from `scope`."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    renamed = {name: f"{name}__{identifier(scope)}" for name in _with_seeds(functions)}
    for name in renamed:
        refreshed = graph_def.library.function.add()
        refreshed.CopyFrom(functions[name])
        refreshed.signature.name = renamed[name]
        _refresh_nodes(refreshed.node_def, f"{scope}/{name}", "{}:output:0")
        rename_calls(refreshed.node_def, renamed)
    _refresh_nodes(graph_def.node, scope, "{}")
    rename_calls(graph_def.node, renamed)


def _with_seeds(functions: Mapping[str, Any]) -> list[str]:
    """The functions that use a seed, themselves or in what they call."""
    found = {name for name, function in functions.items() if any(map(_has_seed, function.node_def))}
    callers: dict[str, set[str]] = {}
    for name, function in functions.items():
        for callee in {one for node in function.node_def for one in called(node)}:
            callers.setdefault(callee, set()).add(name)
    waiting = list(found)
    while waiting:
        for caller in callers.get(waiting.pop(), set()) - found:
            found.add(caller)
            waiting.append(caller)
    return sorted(found)


def any_seed(nodes: Iterable[Any]) -> bool:
    """Whether any of the nodes draws numbers that follow from a seed."""
    return any(map(_has_seed, nodes))


def _has_seed(node: Any) -> bool:
    return node.op in _SEED_INPUTS or bool(_seed(node, "seed") or _seed(node, "seed2"))


def _seed(node: Any, name: str) -> int:
    return int(node.attr[name].i) if "seed2" in node.attr and name in node.attr else 0


def _refresh_nodes(nodes: Any, scope: str, spelling: str) -> None:
    constants = {spelling.format(node.name): node for node in nodes if node.op == "Const"}
    for node in list(nodes):
        if node.op in _SEED_INPUTS:
            at = _SEED_INPUTS[node.op]
            constant = constants.get(node.input[at].removesuffix(":0") if spelling == "{}" else node.input[at])
            if constant is not None:  # a seed that is computed, or an input, is its caller's affair
                seed = nodes.add()
                seed.CopyFrom(constant)
                seed.name = f"{node.name}/fresh_seed"
                _refresh_constant(seed, f"{scope}/{node.name}")
                node.input[at] = spelling.format(seed.name)
        elif _has_seed(node):
            node.attr["seed2"].i = _fresh(_seed(node, "seed2"), _seed(node, "seed"), f"{scope}/{node.name}")


def _refresh_constant(node: Any, place: str) -> None:
    old = tf.make_ndarray(node.attr["value"].tensor)
    values = [_fresh(int(one), at, place) for at, one in enumerate(old.flat)]
    fresh = tf.make_tensor_proto(values, node.attr["dtype"].type, shape=old.shape)
    node.attr["value"].tensor.CopyFrom(fresh)


def _fresh(seed: int, other: int, place: str) -> int:
    drawn = hashlib.sha256(f"{seed} {other} {place}".encode()).digest()
    return int.from_bytes(drawn[:4], "little") & 0x7FFFFFFF or 1  # TensorFlow takes a zero for none


def identifier(scope: str) -> str:
    """The scope as part of a function's name."""
    return "".join(one if one.isalnum() else "_" for one in scope)
