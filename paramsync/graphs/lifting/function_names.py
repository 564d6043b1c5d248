"""Names for the functions of a graph that say what they hold: in one process, no two graphs mean different ones by one.

TensorFlow keeps the functions of all graphs of a process in one place, by name, and refuses another function under a
name that is taken. But names are made up when a model is traced, and those of two models, or of two versions of one,
are often the same.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from paramsync.errors import GraphError
from paramsync.graphdef.reading import called, rename_calls

_MADE_UP = re.compile(r"(__)?(inference|forward|backward|lifted)_|_(lifted|\d+)(?=_|$)")


def name_by_content(graph_def: Any) -> None:
    """Rename every function after its content, and whatever calls it; of equal functions one stays.

    Raises GraphError where a function calls itself.
    """
    functions = {function.signature.name: function for function in graph_def.library.function}
    names: dict[str, str] = {}
    named: dict[str, Any] = {}
    entered: set[str] = set()
    waiting = list(functions)
    while waiting:
        old = waiting[-1]
        function = functions[old]
        left = [one for node in function.node_def for one in called(node) if one in functions and one not in names]
        if old in names:
            waiting.pop()
        elif left:
            if old in entered:
                raise GraphError(f"function {old!r} calls itself, which no graph can")
            entered.add(old)
            waiting += left
        else:
            rename_calls(function.node_def, names)
            function.signature.name = ""
            content = hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()
            names[old] = function.signature.name = f"{_MADE_UP.sub('', old) or 'function'}_{content[:20]}"
            named[names[old]] = function
            waiting.pop()
    rename_calls(graph_def.node, names)
    library = type(graph_def.library)(function=[named[name] for name in sorted(named)])
    graph_def.library.CopyFrom(library)
