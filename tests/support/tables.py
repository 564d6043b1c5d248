"""Small graphs of one lookup table each."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from paramsync.graphs.graph import Graph
from paramsync.graphs.tables import pack
from paramsync.v1 import bundle_pb2, graph_pb2


def table_graph(entries: Mapping[str, int]) -> Graph:
    """A graph that looks up numbers y for strings x; -1 for strings that are not in the table."""
    return find(tf.constant([*entries], tf.string), tf.constant([*entries.values()], tf.int64), otherwise=-1)


def find(keys: tf.Tensor, values: tf.Tensor, *, otherwise: object) -> Graph:
    """A graph that looks up y for x in a table; `otherwise` for keys that are not in the table."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(keys.dtype, [None], name="x")
        handle = tf.compat.v1.placeholder(tf.resource, [], name="table")
        default = tf.constant(otherwise, values.dtype, values.shape[1:])
        y = tf.raw_ops.LookupTableFindV2(table_handle=handle, keys=x, default_value=default)
        size = tf.raw_ops.LookupTableSizeV2(table_handle=handle)
    column = bundle_pb2.TensorShape(dim=[bundle_pb2.TensorShape.Dim(size=-1)])
    row = bundle_pb2.TensorShape(unknown_rank=True)
    kind = values.dtype.as_datatype_enum
    signature = graph_pb2.Signature(
        inputs=[graph_pb2.Endpoint(name="x", tensor=x.name, dtype=keys.dtype.as_datatype_enum, shape=column)],
        outputs=[
            graph_pb2.Endpoint(name="y", tensor=y.name, dtype=kind, shape=row),
            graph_pb2.Endpoint(name="size", tensor=size.name, dtype=tf.int64.as_datatype_enum),
        ],
    )
    return Graph(
        graph_pb2.Graph(
            graph_def=graph.as_graph_def().SerializeToString(deterministic=True),
            signatures={"serving_default": signature},
            tables=[pack("table", keys, values)],
        )
    )
