"""Computes the digest of a graph: equal for two traces of a model, different for different computations.

The digest of a node covers its op, its attributes and the digests of its inputs. Names of nodes and functions do not
count; names of graph inputs, outputs and parameters do. `name_by_content` names functions after their content.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from paramsync.errors import GraphError
from paramsync.graphdef.reading import called, callees_first, node_of, rename_calls


def digest(
    graph_def: Any, named: Mapping[str, str], results: Iterable[tuple[str, str]], ends: Iterable[str] = ()
) -> str:
    """Return the digest, in hex, of the nodes that compute `results`, which are pairs of a name and a tensor.

    `named` describes the input, parameter or table behind each placeholder. `ends` describes all inputs, outputs,
    parameters and tables, even if no node uses them.
    """
    nodes = _Nodes(graph_def.node, named, _Functions(graph_def.library.function))
    whole = hashlib.sha256()
    for name, tensor in sorted(results):
        whole.update(_packed(name.encode(), nodes.tensor(tensor)))
    for end in sorted(ends):
        whole.update(_packed(end.encode()))
    return whole.hexdigest()[:32]


# Attributes whose values TensorFlow makes up when it traces, to tell loops, stacks and arrays of one graph apart.
_LABELS = frozenset({"frame_name", "stack_name", "tensor_array_name"})


class _Nodes:
    """The digests of the nodes of a graph or of one function, computed on demand."""

    def __init__(self, nodes: Iterable[Any], named: Mapping[str, str], functions: _Functions) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._functions = functions
        self._done = {node: _hash(b"named", name.encode()) for node, name in named.items()}

    def tensor(self, name: str) -> bytes:
        node, _, port = name.partition(":")
        return _hash(self._node(node), port.removesuffix(":0").encode() if port not in ("", "0") else b"")

    def _node(self, wanted: str) -> bytes:
        entered: set[str] = set()
        stack = [wanted]
        while stack:  # a loop without recursion, because real graphs are deeper than Python's stack
            name = stack[-1]
            if name in self._done:
                stack.pop()
                continue
            inputs = map(node_of, self._nodes[name].input)
            missing = [before for before in inputs if before not in self._done and before not in entered]
            entered.add(name)
            if missing:
                stack += missing
            else:
                self._done[name] = self._digest(self._nodes[name])
                stack.pop()
        return self._done[wanted]

    def _digest(self, node: Any) -> bytes:
        data, control = [], []
        for tensor in node.input:
            name = node_of(tensor)
            # An input without a digest closes a loop of a v1 graph. Use the input's op in place of its digest.
            before = self._done.get(name) or _hash(b"back", self._nodes[name].op.encode())
            if tensor.startswith("^"):
                control.append(before)
            else:
                data.append(_hash(before, tensor[len(name) :].removesuffix(":0").encode()))
        op = self._functions.digest(node.op) or node.op.encode()
        return _hash(op, _packed(*data), _packed(*sorted(control)), self._attributes(node.attr))

    def _attributes(self, attributes: Mapping[str, Any]) -> bytes:
        return _packed(
            *(
                _packed(name.encode(), self._attribute(value))
                for name, value in sorted(attributes.items())
                if not (name.startswith("_") or name in _LABELS)
            )
        )

    def _attribute(self, value: Any) -> bytes:
        functions = [value.func] if value.HasField("func") else value.list.func
        if functions:
            return _packed(
                *(
                    _packed(self._functions.digest(reference.name) or reference.name.encode())
                    + self._attributes(reference.attr)
                    for reference in functions
                )
            )
        return bytes(value.SerializeToString(deterministic=True))


class _Functions:
    """The digests of a graph's functions, each computed once."""

    def __init__(self, functions: Iterable[Any]) -> None:
        self._functions = {function.signature.name: function for function in functions}
        self._done: dict[str, bytes] = {}

    def digest(self, name: str) -> bytes | None:
        """Return the digest of a function; None for an unknown name."""
        if name in self._functions and name not in self._done:
            function = self._functions[name]
            named = {argument.name: f"argument {at}" for at, argument in enumerate(function.signature.input_arg)}
            nodes = _Nodes(function.node_def, named, self)
            results = [nodes.tensor(function.ret[result.name]) for result in function.signature.output_arg]
            effects = [nodes.tensor(node) for node in function.control_ret.values()]
            self._done[name] = _hash(_packed(*results), _packed(*sorted(effects)))
        return self._done.get(name)


def _packed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(_packed(*parts)).digest()


_MADE_UP = re.compile(r"(__)?(inference|forward|backward|lifted)_|_(lifted|\d+)(?=_|$)")


def name_by_content(graph_def: Any) -> None:
    """Rename every function after its content, also in its callers, and drop duplicates.

    TensorFlow keeps the functions of all graphs of a process by name, and rejects a different function under a known
    name. But the names that it makes up when it traces are often the same for two models, or two versions of a model.
    Raises GraphError for a function that calls itself.
    """
    functions = {function.signature.name: function for function in graph_def.library.function}
    calls = {name: [each for node in body.node_def for each in called(node)] for name, body in functions.items()}
    names: dict[str, str] = {}
    named: dict[str, Any] = {}
    try:
        for old in callees_first(calls):
            function = functions[old]
            rename_calls(function.node_def, names)
            function.signature.name = ""
            content = hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()
            names[old] = function.signature.name = f"{_MADE_UP.sub('', old) or 'function'}_{content[:20]}"
            named[names[old]] = function
    except RecursionError as error:
        raise GraphError(f"function {str(error)!r} calls itself, which no graph can") from error
    rename_calls(graph_def.node, names)
    graph_def.library.CopyFrom(type(graph_def.library)(function=[named[name] for name in sorted(named)]))
