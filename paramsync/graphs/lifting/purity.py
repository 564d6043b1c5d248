"""What a graph may keep between calls: nothing. Refuses what does, and says of the calls of the rest: stateless.

Nor does it print: nobody reads that where it is served, and an answer has no effect but itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from paramsync.errors import GraphError
from paramsync.graphdef.reading import called, node_of
from paramsync.graphs.lifting.roles import CALLS, definition

# What keeps something between calls although it is no parameter and no table, by its op; what to do.
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
"""What prints, and what takes its place."""


def purify(graph_def: Any) -> None:
    """Make the calls of what keeps nothing stateless ones, and print nothing. Raises GraphError, which names what keeps
    something."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    ops = _Ops(functions)
    bodies = [("", graph_def.node), *((name, function.node_def) for name, function in functions.items())]
    for _, nodes in bodies:
        _silence(nodes)
    for function, nodes in bodies:
        for node in nodes:
            reason = ops.refusal(node.op)
            if reason:
                where = f" in function {function!r}" if function else ""
                raise GraphError(f"the graph cannot be made pure: {node.op} {node.name!r}{where} {reason}")
    for _, nodes in bodies:
        for node in nodes:
            if node.op in CALLS and not ops.is_stateful(node):
                node.op = CALLS[node.op].stateless


def _silence(nodes: Any) -> None:
    """What prints passes on what it is given, if it does that, and waits for it if not, as it is in a loop's round."""
    for node in nodes:
        if node.op in PRINTS:
            node.op = PRINTS[node.op]
            passes = node.op == "Identity"
            read = [one for one in node.input if not one.startswith("^")]
            waits = [one for one in node.input if one.startswith("^")]
            node.input[:] = [*read[:1], *waits] if passes else [*(f"^{node_of(one)}" for one in read), *waits]
            for name in set(node.attr) - ({"T"} if passes else set()):
                del node.attr[name]


class _Ops:
    """What is known of the ops of a graph and of its functions, each looked at once."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self._stateful: dict[str, bool] = {}  # by op or function
        self._refusals: dict[str, str] = {}

    def refusal(self, op: str) -> str:
        """Why a graph with this op cannot be pure; "" where it can."""
        if op not in self._refusals:
            known = op in self._functions
            found = [reason for pattern, reason in _REFUSALS.items() if not known and pattern.fullmatch(op)]
            self._refusals[op] = found[0] if found else ""
        return self._refusals[op]

    def is_stateful(self, node: Any) -> bool:
        names = called(node)
        return any(self._named(name) for name in (names[1:] if node.op in CALLS else names))

    def _named(self, name: str) -> bool:
        if name not in self._stateful:
            self._stateful[name] = True  # as good as any for one that calls itself
            if name in self._functions:
                found = any(self.is_stateful(node) for node in self._functions[name].node_def)
            else:
                op = definition(name)
                found = op is None or bool(op.is_stateful)  # of what is not known, whoever builds the graph says so
            self._stateful[name] = found
        return self._stateful[name]
