"""Traces tf.functions, and names arguments and results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError, StructureError
from paramsync.graphs.sources.structures import components, leaves, unique
from paramsync.graphs.sources.traces import Trace

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def is_function(source: Any) -> bool:
    """Return whether this is a tf.function or a ConcreteFunction."""
    return isinstance(source, tf.types.experimental.ConcreteFunction) or hasattr(source, "get_concrete_function")


def trace(function: Any, inputs: Any = None, *, what: str = "the function") -> Trace:
    """Trace a function.

    A function without an input_signature needs `inputs`: specs of its arguments, in order or by name.
    """
    if isinstance(function, tf.types.experimental.ConcreteFunction):
        if inputs is not None:
            raise GraphError(f"{what} has its inputs already: leave inputs= out")
        return _name_ends(function)
    if not hasattr(function, "get_concrete_function"):
        raise GraphError(f"{what} cannot be captured: it must be a tf.function with an input_signature")
    try:
        if isinstance(inputs, Mapping):
            return _name_ends(function.get_concrete_function(**inputs))
        arguments = [inputs] if isinstance(inputs, tf.TypeSpec) else inputs
        return _name_ends(function.get_concrete_function(*(arguments or ())))
    except (TypeError, ValueError) as error:
        raise GraphError(
            f"{what} cannot be captured: it must be a tf.function with an input_signature, or inputs= must say what"
            f" it takes, as tf.TensorSpec: {reason(error)}"
        ) from error


def trace_anew(function: Any, inputs: Any = None, *, what: str = "the function", from_code: bool = True) -> Trace:
    """Trace the current code of a function again, because a tf.function keeps its old traces.

    A function without code, such as a ConcreteFunction, raises StructureError if `from_code`; otherwise its existing
    trace is used.
    """
    code = getattr(function, "python_function", None)
    if code is None or isinstance(function, tf.types.experimental.ConcreteFunction):
        if not from_code:
            return trace(function, inputs, what=what)
        raise StructureError(
            f"{what} is a ConcreteFunction, which goes on computing what it was traced from: trace it again, and make"
            " the publisher anew"
        )
    return trace(tf.function(code, input_signature=function.input_signature), inputs, what=what)


def _name_ends(function: Any) -> Trace:
    """Make a Trace of a ConcreteFunction. Inputs get the arguments' names, outputs the keys of the result."""
    count = len(function.inputs) - len(function.captured_inputs)
    inputs = [name for path, spec in _arguments(function) for name in components(path, spec)]
    if len(inputs) != count:  # a pruned function: use the names of its placeholders
        inputs = [tensor.op.name for tensor in function.inputs[:count]]
    return Trace(function, unique(inputs), result_names(function))


def result_names(function: Any, names: Sequence[str] = ()) -> list[str]:
    """Name the outputs: by the joined keys of the result, or else by `names`, or else by position."""
    results = [(path, value) for path, value in leaves(function.structured_outputs) if value is not None]
    if len(results) != len(names):
        names = ["outputs" if len(results) == 1 else f"outputs_{position}" for position in range(len(results))]
    keyed = any(not path.replace("_", "").isdigit() for path, _ in results if path)
    paths = [(path if keyed else name, value) for (path, value), name in zip(results, names, strict=True)]
    return unique([name for path, value in paths for name in components(path, value)])


def reason(error: Exception) -> str:
    """Return the message of an error in one line. Drops autograph's traceback, and Keras' colours and arguments."""
    text = _COLOURS.sub("", str(error)).partition("\n\nArguments received by ")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines[:1] == ["in user code:"]:
        places = [at for at, line in enumerate(lines) if line.startswith('File "')]
        lines = lines[places[-1] + 2 :] if places else lines[1:]
    return " ".join(lines) or type(error).__name__


def _arguments(function: Any) -> Iterator[tuple[str, tf.TypeSpec]]:
    """Yield the name and spec of every tensor argument. A name in the spec overrides the argument's name."""
    if function.structured_input_signature is None:  # a pruned function has no signature
        return
    positional, keywords = function.structured_input_signature
    names = [name for name in function.function_type.parameters if name not in keywords]
    names += [f"args_{position}" for position in range(len(names), len(positional))]
    for name, argument in (*zip(names, positional, strict=False), *sorted(keywords.items())):
        for path, spec in leaves(argument, name):
            if isinstance(spec, tf.TypeSpec):
                yield getattr(spec, "name", None) or path, spec
