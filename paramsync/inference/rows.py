"""Finds out whether each row of a signature's outputs depends only on the same row of its inputs, by rules for ops.

Trial calls cannot show this: `x / max(1, reduce_max(x))` mixes rows only if a value is above 1. So there must be a rule
for each op, which says when the op keeps rows apart.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tensorflow as tf

from paramsync.graphdef.reading import node_of, reach, readers_of
from paramsync.graphs.graph import Graph
from paramsync.graphs.nodes import inline, leading_to, with_functions


class InputPart(enum.Enum):
    """The part of the inputs that a tensor depends on."""

    NOTHING = "no input: the same in every call"
    ROW = "each row depends on the same row of the inputs"
    COUNT = "the number of rows; `dims` are the dimensions of a shape, or the size in a scalar"
    ALL = "more than one row, or unknown"


_ROWS = "rows"  # the dimension that is the number of rows


@dataclass(frozen=True, slots=True)
class Made:
    """What a tensor depends on."""

    of: InputPart
    dims: tuple[Any, ...] = ()
    """For COUNT: each dimension is _ROWS, a size, or None if the size is unknown."""


NOTHING, ROW, ALL = Made(InputPart.NOTHING), Made(InputPart.ROW), Made(InputPart.ALL)


# Rules of ops ---------------------------------------------------------------------------------------------------------


def _rank(tensor: Any) -> int:
    return len(tensor.shape)  # raises ValueError if the rank is unknown


def _static(tensor: Any) -> list[Any]:
    """Return the constant values of a tensor, flat. Raises ValueError if they are unknown."""
    value = tf.get_static_value(tensor)
    if value is None:
        raise ValueError
    return list(value.reshape(-1).tolist())


def _is_row(given: Sequence[Made], *places: int) -> bool:
    """Return whether the arguments at these places are ROW, and all other arguments NOTHING."""
    return all(made.of is (InputPart.ROW if at in places else InputPart.NOTHING) for at, made in enumerate(given))


def _counts(made: Made) -> bool:
    """Return whether this is a shape whose first dimension, and no other, is the number of rows."""
    return made.of is InputPart.COUNT and made.dims[:1] == (_ROWS,) and _ROWS not in made.dims[1:]


def _of(condition: bool) -> Made:
    return ROW if condition else ALL


def _spares_rows(axes: Sequence[int], rank: int) -> bool:
    """Return whether none of these axes, which may be negative, is the first axis."""
    return all(axis % rank != 0 for axis in axes)


def _has_fixed_sizes(operation: Any) -> bool:
    """Return whether an op parses only features of fixed size.

    Other features are sparse, ragged or padded, so the shapes of their tensors depend on all rows.
    """
    sparse = operation.get_attr("num_sparse") or operation.get_attr("ragged_value_types")
    known = all(shape.is_fully_defined() for shape in map(tf.TensorShape, operation.get_attr("dense_shapes")))
    return not sparse and known and _rank(operation.inputs[0]) == 1


_ROWS_AT = {"LookupTableFindV2": 1, "Split": 1}  # the place of the argument with the rows; 0 for other ops
_ALWAYS = """
    AsString BiasAdd Bucketize Conv2D Conv3D DepthwiseConv2dNative EnsureShape LRN LookupTableFindV2 RegexFullMatch
    RegexReplace ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor StaticRegexFullMatch StaticRegexReplace
    StringLength StringLower StringStrip StringToHashBucket StringToHashBucketFast StringToHashBucketStrong
    StringToNumber StringUpper
"""
# Ops for which each row of the result depends on one row of one argument, each with its condition. All other arguments
# must be the same for all rows.
_ONE_ARGUMENT: Mapping[str, Callable[[Any], bool]] = {
    _ALWAYS: lambda op: _rank(op.inputs[_ROWS_AT.get(op.type, 0)]) >= 1,
    "LogSoftmax Softmax TopKV2": lambda op: _rank(op.inputs[0]) >= 2,  # these ops work along the last dimension
    "AvgPool AvgPool3D MaxPool MaxPool3D": lambda op: op.get_attr("ksize")[0] == op.get_attr("strides")[0] == 1,
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3": lambda op: not op.get_attr("is_training"),
    "All Any ArgMax ArgMin Cumprod Cumsum EuclideanNorm Max Mean Min Prod ReverseV2 Sum": lambda op: _spares_rows(
        _static(op.inputs[1]), _rank(op.inputs[0])
    ),
    "MatMul": lambda op: not op.get_attr("transpose_a"),
    "Transpose": lambda op: _static(op.inputs[1])[0] == 0,
    "ExpandDims": lambda op: _spares_rows(_static(op.inputs[1]), _rank(op.inputs[0]) + 1),
    "Squeeze": lambda op: (
        op.get_attr("squeeze_dims") and _spares_rows(op.get_attr("squeeze_dims"), _rank(op.inputs[0]))
    ),
    "Unpack": lambda op: _spares_rows([op.get_attr("axis")], _rank(op.inputs[0])),
    "Split": lambda op: _spares_rows(_static(op.inputs[0]), _rank(op.inputs[1])),
    "SplitV": lambda op: _spares_rows(_static(op.inputs[2]), _rank(op.inputs[0])),
    "Slice": lambda op: _static(op.inputs[1])[0] == 0 and _static(op.inputs[2])[0] == -1,
    "OneHot": lambda op: _rank(op.inputs[0]) >= 1 and _spares_rows([op.get_attr("axis")], _rank(op.inputs[0]) + 1),
    "MirrorPad Pad PadV2": lambda op: _static(op.inputs[1])[:2] == [0, 0],
    "ParseExampleV2": _has_fixed_sizes,
}


def _each(operation: Any, given: Sequence[Made]) -> Made:
    """Return what an elementwise result depends on. An argument with fewer dimensions is broadcast to all rows."""
    if any(made.of is InputPart.COUNT for made in given):
        return ALL
    rank = max(_rank(tensor) for tensor in operation.inputs)
    for tensor, made in zip(operation.inputs, given, strict=True):
        if made == ROW and _rank(tensor) != rank:
            return ALL
        if made == NOTHING and _rank(tensor) == rank and tensor.shape[0] != 1:
            return ALL
    return ROW


def _same(operation: Any, given: Sequence[Made]) -> Made:
    return given[0]


def _products(operation: Any, given: Sequence[Made]) -> Made:
    """Return what a matrix product depends on. It broadcasts all dimensions except the last two."""
    left, right = map(_rank, operation.inputs)
    if _is_row(given, 0, 1):
        return _of(left == right >= 3)
    if _is_row(given, 0):
        return _of(right < left >= 3 or (left == right == 2 and not operation.get_attr("adj_x")))
    return _of(left < right >= 3)


def _einsum(operation: Any, given: Sequence[Made]) -> Made:
    equation = operation.get_attr("equation").decode()
    taken, result = equation.split("->")
    label = result[0]
    for term, made in zip(taken.split(","), given, strict=True):
        if made.of is InputPart.COUNT or (made == ROW) != term.startswith(label) or label in term[1:]:
            return ALL
    return _of("." not in equation and label.isalpha() and label not in result[1:])


def _reshaped(operation: Any, given: Sequence[Made]) -> Made:
    """Return what the result of Reshape depends on. Rows stay apart if the first dimension stays the first."""
    if given[0] != ROW:
        return ALL
    if given[1].of is InputPart.COUNT:
        return _of(_counts(given[1]))
    first, *rest = _static(operation.inputs[1])
    row = operation.inputs[0].shape[1:]
    return _of(first == -1 and row.is_fully_defined() and prod(row.as_list()) == prod(rest) > 0)


def _joined(operation: Any, given: Sequence[Made]) -> Made:
    *parts, axis = operation.inputs
    if any(made.of is InputPart.COUNT for made in given):
        return Made(InputPart.COUNT, sum((_dims(tensor, made) for tensor, made in zip(parts, given, strict=False)), ()))
    return _of(_is_row(given, *range(len(parts))) and _spares_rows(_static(axis), _rank(parts[0])))


def _packed(operation: Any, given: Sequence[Made]) -> Made:
    axis = operation.get_attr("axis")
    if any(made.of is InputPart.COUNT for made in given):
        dims = [_dims(tensor, made) for tensor, made in zip(operation.inputs, given, strict=True)]
        return Made(InputPart.COUNT, sum(dims, ())) if axis == 0 and all(len(sizes) == 1 for sizes in dims) else ALL
    return _of(_is_row(given, *range(len(given))) and _spares_rows([axis], _rank(operation.inputs[0]) + 1))


def _shape(operation: Any, given: Sequence[Made]) -> Made:
    return Made(InputPart.COUNT, (_ROWS, *operation.inputs[0].shape.as_list()[1:])) if given[0] == ROW else ALL


def _dims(tensor: Any, made: Made) -> tuple[Any, ...]:
    if made.of is InputPart.ROW or _rank(tensor) > 1:
        raise ValueError
    return made.dims if made.of is InputPart.COUNT else tuple(_static(tensor))


def _sliced(operation: Any, given: Sequence[Made]) -> Made:
    masks = {
        name: operation.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    begin, end, strides = map(_static, operation.inputs[1:])
    if given[0].of is InputPart.COUNT and _is_row([ROW, *given[1:]], 0):
        if len(begin) != 1 or masks["ellipsis"] or masks["new_axis"] or _rank(operation.inputs[0]) != 1:
            return ALL
        if masks["shrink_axis"]:
            return Made(InputPart.COUNT, (given[0].dims[begin[0]],))
        bounds = None if masks["begin"] else begin[0], None if masks["end"] else end[0]
        return Made(InputPart.COUNT, given[0].dims[slice(*bounds, strides[0])])
    if masks["ellipsis"] & 1:
        return _of(_is_row(given, 0) and not masks["new_axis"] and _rank(operation.inputs[0]) >= len(begin))
    whole = masks["begin"] & 1 and masks["end"] & 1 and strides[0] == 1
    return _of(_is_row(given, 0) and bool(whole) and not (masks["new_axis"] | masks["shrink_axis"]) & 1)


def _gathered(operation: Any, given: Sequence[Made]) -> Made:
    batched = operation.get_attr("batch_dims") if operation.type == "GatherV2" else 0
    axis = _static(operation.inputs[2])[0] if operation.type == "GatherV2" else 0
    if _is_row(given, 1):
        return _of(axis == 0 and batched == 0 and _rank(operation.inputs[1]) >= 1)
    axis %= _rank(operation.inputs[0])
    if _is_row(given, 0):
        return _of(axis != 0 and batched == 0)
    return _of(_is_row(given, 0, 1) and 1 <= batched <= axis)


def _tiled(operation: Any, given: Sequence[Made]) -> Made:
    if given[0] == ROW:
        return _of(_is_row(given, 0) and _static(operation.inputs[1])[0] == 1)
    return _of(given[0] == NOTHING and _counts(given[1]) and operation.inputs[0].shape[0] == 1)


def _filled(operation: Any, given: Sequence[Made]) -> Made:
    """Return what the result of Fill depends on.

    If the number of rows is the first dimension, each row is the same constant.
    """
    return _of(_counts(given[0]) and given[1] == NOTHING)


_OPS: Mapping[Callable[[Any, Sequence[Made]], Made], str] = {
    _each: """
        Abs Acos Acosh Add AddN AddV2 Asin Asinh Atan Atan2 Atanh BitwiseAnd BitwiseOr BitwiseXor Ceil CheckNumerics
        ClipByValue Complex ComplexAbs Conj Cos Cosh Digamma Div DivNoNan Elu Equal Erf Erfc Erfinv Exp Expm1 Floor
        FloorDiv FloorMod Greater GreaterEqual Imag Inv Invert IsFinite IsInf IsNan LeakyRelu Less LessEqual Lgamma Log
        Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NotEqual OnesLike Pow Real
        RealDiv Reciprocal Relu Relu6 Rint Round Rsqrt Select SelectV2 Selu Sigmoid Sign Sin Sinh Softplus Softsign
        Sqrt Square SquaredDifference StringJoin Sub Substr Tan Tanh TruncateDiv TruncateMod Xdivy Xlogy ZerosLike
    """,
    _same: "Cast Identity PreventGradient Snapshot StopGradient",
    _products: "BatchMatMul BatchMatMulV2 BatchMatMulV3",
    _einsum: "Einsum",
    _reshaped: "Reshape",
    _joined: "ConcatV2",
    _packed: "Pack",
    _shape: "Shape",
    _sliced: "StridedSlice",
    _gathered: "Gather GatherV2",
    _tiled: "Tile",
    _filled: "Fill",
}
_RULES = {op: rule for rule, ops in _OPS.items() for op in ops.split()}
_CONDITIONS = {op: condition for ops, condition in _ONE_ARGUMENT.items() for op in ops.split()}
_ELEMENTWISE = {*_OPS[_each].split(), *_OPS[_same].split(), "IdentityN", "NoOp"}
_FIRST_RESULT_ONLY = frozenset(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"))


def are_apart(graph: Graph, signature: str) -> bool:
    """Return whether rows of several requests may share a call, by the rules of the ops. Takes milliseconds."""
    message = graph.message()
    described = message.signatures[signature]
    whole = inline(tf.compat.v1.GraphDef.FromString(message.graph_def))
    with tf.Graph().as_default() as built:
        tf.graph_util.import_graph_def(whole.graph_def, name="")
    made: dict[str, Made] = {end.tensor: ROW for end in described.inputs}
    for operation in built.get_operations():  # in this order, inputs come before their readers
        results = _results(operation, [made.get(tensor.name, ALL) for tensor in operation.inputs])
        for tensor, result in zip(operation.outputs, results, strict=True):
            made.setdefault(tensor.name, result)
    return all(made.get(whole.tensor(end.tensor), ALL) == ROW for end in described.outputs)


def is_elementwise(graph: Graph, signature: str) -> bool:
    """Return whether an input of any shape is safe: there is one input, and all ops are elementwise or scalars.

    Other kernels rely on ranks. Some end the process for a wrong rank, even if only a control dependency runs them.
    Constants and parameters must be scalars, because broadcasting to a larger tensor could take any amount of memory.
    """
    message = graph.message()
    described = message.signatures[signature]
    graph_def = tf.compat.v1.GraphDef.FromString(message.graph_def)
    outputs = [end.tensor for end in described.outputs]
    # includes nodes that only control dependencies need
    runs = leading_to({node.name: node for node in graph_def.node}, outputs)
    whole = inline(with_functions(graph_def, runs))
    nodes = {node.name: node for node in whole.graph_def.node}
    takes = {node_of(end.tensor) for end in described.inputs}
    readers = readers_of(whole.graph_def.node)
    fed = [nodes[name] for name in reach(takes, lambda name: readers.get(name, [])) if name in nodes]
    takes |= {value.node for value in message.parameters if not value.shape.unknown_rank and not value.shape.dim}
    return len(described.inputs) == 1 and all(
        node.name in takes or node.op in _ELEMENTWISE or _is_scalar(node)
        for node in [*fed, *leading_to(nodes, map(whole.tensor, outputs))]
    )


def _is_scalar(node: Any) -> bool:
    return node.op == "Const" and not node.attr["value"].tensor.tensor_shape.dim


def _results(operation: Any, given: Sequence[Made]) -> list[Made]:
    outputs = operation.outputs
    if operation.type in ("Merge", "NextIteration", "Enter"):  # in a loop, an input may come after its reader
        return [ALL] * len(outputs)
    if all(argument.of is InputPart.NOTHING for argument in given):
        return [NOTHING] * len(outputs)
    if operation.type == "IdentityN":  # custom gradients add this op
        return list(given)
    if any(argument.of is InputPart.ALL for argument in given):
        return [ALL] * len(outputs)
    try:
        made = _made(operation, given)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):  # a rank or value is unknown
        made = ALL
    if operation.type in _FIRST_RESULT_ONLY:
        return [made, *[ALL] * (len(outputs) - 1)]
    return [made] * len(outputs)


def _made(operation: Any, given: Sequence[Made]) -> Made:
    if operation.type in _CONDITIONS:
        rows_apart = _is_row(given, _ROWS_AT.get(operation.type, 0)) and _CONDITIONS[operation.type](operation)
        return _of(rows_apart)
    return _RULES[operation.type](operation, given)
