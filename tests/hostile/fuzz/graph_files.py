"""Graph files that somebody tampered with: each is refused, or loaded and called; nothing may end the process.

`python -m tests.hostile.fuzz.graph_files FIRST COUNT` tries so many, each made from its number alone. Prints a number
before it tries it, so that the last line names the file that ended the process.
"""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from paramsync.errors import ParamsyncError
from paramsync.graphdef.allowed_ops import SAFE
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.specs import TensorSpec
from paramsync.v1 import graph_pb2
from tests.support.tables import table_graph

MEMORY = 24 << 30  # of addresses, which TensorFlow asks for freely
_OPS = sorted(SAFE)


class Layers(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(tf.ones([3, 3, 1, 4]))
        self.scale = tf.Variable(tf.ones([4]))
        self.table = tf.Variable(tf.ones([10, 4]))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 8, 8, 1], tf.float32, name="image"),
            tf.TensorSpec([None], tf.int32, name="rows"),
        ]
    )
    def __call__(self, image: tf.Tensor, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        seen = tf.nn.conv2d(image, self.kernel, 1, "SAME")
        seen, *_ = tf.compat.v1.nn.fused_batch_norm(
            seen, self.scale, self.scale, self.scale, self.scale, is_training=False
        )
        seen = tf.reduce_mean(tf.nn.max_pool2d(tf.nn.relu(seen), 2, 2, "SAME"), [1, 2])
        return {"y": tf.nn.softmax(seen + tf.gather(self.table, rows)), "best": tf.math.top_k(seen, 2).indices}


class Loops(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.eye(3))

    @tf.function(input_signature=[tf.TensorSpec([None, 5, 3], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        steps = tf.TensorArray(tf.float32, 5)
        state = tf.zeros_like(x[:, 0])

        def body(at: tf.Tensor, state: tf.Tensor, steps: tf.TensorArray) -> Any:
            state = tf.tanh(x[:, at] @ self.weights + state)
            state = tf.cond(tf.reduce_sum(state) > 0.0, lambda: state, lambda: -state)
            return at + 1, state, steps.write(at, state)

        _, state, steps = tf.while_loop(lambda at, *_: at < 5, body, [0, state, steps])
        return {"last": state, "all": tf.transpose(steps.stack(), [1, 0, 2])}


class Words(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def __call__(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        words = tf.strings.split(tf.strings.regex_replace(tf.strings.lower(text), "[^a-z ]", ""))
        hashed = tf.strings.to_hash_bucket_fast(words.values, 7)
        dense = words.with_values(hashed).to_tensor(-1)
        sparse = tf.sparse.from_dense(tf.ragged.boolean_mask(dense, dense > 2).to_tensor())
        return {"ids": dense, "counts": tf.math.bincount(hashed, minlength=7), "some": tf.sparse.to_dense(sparse)}


def corpus() -> list[bytes]:
    graphs = [*(capture(kind()).graph for kind in (Layers, Loops, Words)), table_graph({"a": 1, "b": 2})]
    return [one.to_bytes() for one in graphs]


def tampered(content: bytes, random: random.Random) -> bytes:
    message = graph_pb2.Graph.FromString(content)
    message.digest = ""
    graph_def = tf.compat.v1.GraphDef.FromString(message.graph_def)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        random.choice(_TAMPERINGS)(message, graph_def, random)
    message.graph_def = graph_def.SerializeToString()
    if random.random() < 0.1:
        message.graph_def = _flipped(message.graph_def, random)
    content = message.SerializeToString()
    return _flipped(content, random) if random.random() < 0.1 else content


def attempt(content: bytes) -> None:
    """Load it and call each signature, as a server does."""
    try:
        graph = Graph.from_bytes(content)
    except ParamsyncError:
        return
    for name, signature in graph.signatures.items():
        try:
            inputs = {one.name: _some(one) for one in signature.inputs.values()}
            graph([_some(one) for one in graph.parameters], inputs, signature=name)
        except (tf.errors.OpError, ValueError, TypeError, OverflowError):
            continue


def _some(spec: TensorSpec) -> tf.Tensor:
    shape = [2 if size is None else size for size in spec.shape or ()]
    if tf.TensorShape(shape).num_elements() > 1 << 20:
        raise ValueError(shape)
    return tf.zeros(shape, tf.as_dtype(spec.dtype))


def _flipped(content: bytes, random: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 2, 8))):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def _node(graph_def: Any, random: random.Random) -> Any:
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    return random.choice(random.choice([one for one in bodies if one]))


def _other_op(message: Any, graph_def: Any, random: random.Random) -> None:
    _node(graph_def, random).op = random.choice(_OPS)


def _other_input(message: Any, graph_def: Any, random: random.Random) -> None:
    node = _node(graph_def, random)
    if node.input:
        other = random.choice([random.choice(graph_def.node).name, *_node(graph_def, random).input, "^" + node.name])
        node.input[random.randrange(len(node.input))] = random.choice([other, f"{other}:1", f"{other}:99"])


def _fewer_or_more_inputs(message: Any, graph_def: Any, random: random.Random) -> None:
    node = _node(graph_def, random)
    if node.input and random.random() < 0.5:
        del node.input[random.randrange(len(node.input))]
    else:
        node.input.append(random.choice(graph_def.node).name)


def _other_attribute(message: Any, graph_def: Any, random: random.Random) -> None:
    for _ in range(10):
        node = _node(graph_def, random)
        if node.attr:
            break
    else:
        return
    name = random.choice(sorted(node.attr))
    value = node.attr[name]
    kind = value.WhichOneof("value")
    if kind == "i":
        value.i = random.choice(_NUMBERS)
    elif kind == "type":
        value.type = random.choice((*range(1, 34), 101, 107, 120))
    elif kind == "b":
        value.b = not value.b
    elif kind == "f":
        value.f = random.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
    elif kind == "s":
        value.s = random.choice((b"", b"\xff\0", b"VALID", b"NCHW", b"NHWC", b"a" * 10000, b"(((((((((a*)*)*)*"))
    elif kind == "shape":
        _other_shape(value.shape, random)
    elif kind == "tensor":
        _other_tensor(value.tensor, random)
    elif kind == "list":
        _other_list(value.list, random)
    elif kind == "func":
        value.func.name = random.choice([*(one.signature.name for one in graph_def.library.function), "nowhere"])
    else:
        del node.attr[name]


def _other_list(values: Any, random: random.Random) -> None:
    if values.i:
        values.i[random.randrange(len(values.i))] = random.choice(_NUMBERS)
    elif values.type:
        values.type[random.randrange(len(values.type))] = random.randrange(1, 34)
    elif values.shape:
        _other_shape(random.choice(values.shape), random)
    if random.random() < 0.3:
        values.i.append(random.choice(_NUMBERS))


def _other_shape(shape: Any, random: random.Random) -> None:
    if shape.dim and random.random() < 0.7:
        random.choice(shape.dim).size = random.choice(_NUMBERS)
    elif random.random() < 0.2:
        shape.unknown_rank = not shape.unknown_rank
    else:
        for _ in range(random.choice((1, 1, 300))):
            shape.dim.add(size=random.choice(_NUMBERS))


def _other_tensor(tensor: Any, random: random.Random) -> None:
    choice = random.randrange(5)
    if choice == 0:
        _other_shape(tensor.tensor_shape, random)
    elif choice == 1:
        tensor.dtype = random.choice((*range(1, 34), 101))
    elif choice == 2 and tensor.tensor_content:
        tensor.tensor_content = _flipped(tensor.tensor_content, random)
    else:
        number = random.choice([one for one in _NUMBERS if abs(one) < 1 << 31])
        tensor.ClearField("tensor_content")
        tensor.int_val.append(number)
        tensor.int64_val.append(number)
        tensor.float_val.append(number)


def _other_end(message: Any, graph_def: Any, random: random.Random) -> None:
    signature = random.choice(sorted(message.signatures))
    ends = [*message.signatures[signature].inputs, *message.signatures[signature].outputs]
    ends += [*message.parameters, *message.tables]
    one = random.choice(ends)
    if random.random() < 0.5 and hasattr(one, "shape"):
        _other_shape(one.shape, random)
    elif random.random() < 0.5 and hasattr(one, "dtype"):
        one.dtype = random.choice((*range(34), 101, 1 << 30))
    else:
        node = random.choice(graph_def.node).name
        if hasattr(one, "tensor"):
            one.tensor = random.choice((node, f"{node}:0", f"{node}:1", "", ":0", f"^{node}"))
        else:
            one.node = node


def _without_a_node(message: Any, graph_def: Any, random: random.Random) -> None:
    nodes = random.choice([graph_def.node, *(one.node_def for one in graph_def.library.function)])
    if nodes:
        del nodes[random.randrange(len(nodes))]


def _other_function(message: Any, graph_def: Any, random: random.Random) -> None:
    if not graph_def.library.function:
        return
    function = random.choice(graph_def.library.function)
    choice = random.randrange(5)
    arguments = random.choice((function.signature.input_arg, function.signature.output_arg))
    if choice == 0 and arguments:
        random.choice(arguments).type = random.randrange(34)
    elif choice == 1 and arguments:
        del arguments[random.randrange(len(arguments))]
    elif choice == 2:
        arguments.add(name="more", type=1)
    elif choice == 3 and function.ret:
        function.ret[random.choice(sorted(function.ret))] = random.choice([*function.ret.values(), "x:y:0", "x"])
    else:
        function.signature.name = random.choice([one.signature.name for one in graph_def.library.function] + ["MatMul"])


_NUMBERS = (0, 1, -1, -2, 2, 3, 7, 64, 1000, 1 << 20, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 62) + 1, (1 << 63) - 1)
_TAMPERINGS: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    _other_op,
    _other_input,
    _fewer_or_more_inputs,
    _other_attribute,
    _other_attribute,
    _other_attribute,
    _other_end,
    _without_a_node,
    _other_function,
)


def main(first: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    contents = corpus()
    for number in range(first, first + count):
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        chosen = random.Random(number)
        attempt(tampered(chosen.choice(contents), chosen))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
