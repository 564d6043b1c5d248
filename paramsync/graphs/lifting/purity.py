"""What a graph may keep between calls: nothing. Refuses what does, and says of the calls of the rest: stateless.

Nor does it print: nobody reads that where it is served, and an answer has no effect but itself.
"""

from __future__ import annotations

import re
from typing import Any

from paramsync.errors import GraphError
from paramsync.graphdef.reading import bodies, called, control_inputs, data_inputs, every_node, node_of
from paramsync.graphs.lifting.roles import CALLS
from paramsync.graphs.nodes import definition

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
    stateful: dict[str, bool] = {}  # by op or function

    def is_stateful(node: Any) -> bool:
        names = called(node)
        return any(map(keeps_state, names[1:] if node.op in CALLS else names))

    def keeps_state(name: str) -> bool:
        if name not in stateful:
            stateful[name] = True  # as good as any for one that calls itself
            if name in library:
                stateful[name] = any(map(is_stateful, library[name]))
            else:
                op = definition(name)
                stateful[name] = op is None or op.is_stateful  # of what is not known, whoever builds the graph says so
        return stateful[name]

    for node in every_node(graph_def):
        if node.op in CALLS and not is_stateful(node):
            node.op = CALLS[node.op].stateless


def _silence(node: Any) -> None:
    """What prints passes on what it is given, if it does that, and waits for it if not, as it is in a loop's round."""
    node.op = PRINTS[node.op]
    passes = node.op == "Identity"
    read, waits = data_inputs(node), control_inputs(node)
    node.input[:] = [*read[:1], *waits] if passes else [*(f"^{node_of(tensor)}" for tensor in read), *waits]
    for name in set(node.attr) - ({"T"} if passes else set()):
        del node.attr[name]


def _refusal(op: str) -> str:
    """Why a graph with this op cannot be pure; "" where it can."""
    return next((reason for pattern, reason in _REFUSALS.items() if pattern.fullmatch(op)), "")
