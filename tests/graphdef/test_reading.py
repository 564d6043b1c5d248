"""What GraphDefs call tensors and functions, and names that nobody has yet."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from paramsync.graphdef.reading import called, fresh, full, functions_called, node_of, rename_calls


@pytest.mark.parametrize("tensor", ["a/x", "a/x:1", "^a/x", "a/x:output:0"])
def test_a_tensor_is_of_the_node_whatever_it_is_spelled_like(tensor: str) -> None:
    assert node_of(tensor) == "a/x"


def test_the_first_tensor_of_a_node_has_no_port_unless_it_is_spelled_in_full() -> None:
    assert [full(one) for one in ("x", "x:1", "^x")] == ["x:0", "x:1", "^x"]


def test_a_fresh_name_is_the_name_itself_where_nobody_has_it() -> None:
    assert [fresh("x", taken) for taken in ((), ("x",), ("x", "x_1"))] == ["x", "x_1", "x_2"]


def test_functions_are_named_by_ops_and_attributes_and_by_what_these_say() -> None:
    node = calling(op="f")
    assert sorted(called(node)) == ["f", "inner", "one", "three", "two"]
    rename_calls([node], {"f": "g", "inner": "deep", "three": "drei"})
    assert sorted(called(node)) == ["deep", "drei", "g", "one", "two"]


def test_functions_called_are_found_through_those_that_call_them_once_each() -> None:
    library = tf.compat.v1.GraphDef().library
    for name, op in (("f", "g"), ("g", "f"), ("alone", "f")):
        function = library.function.add()
        function.signature.name = name
        function.node_def.add(name="n", op=op)
    assert [one.signature.name for one in functions_called(library.function, [calling(op="g")])] == ["g", "f"]


def calling(op: str) -> Any:
    """A node that names functions in each way there is."""
    node = tf.compat.v1.GraphDef().node.add(name="n", op=op)
    node.attr["a"].func.name = "one"
    node.attr["a"].func.attr["T"].func.name = "inner"
    for name in ("two", "three"):
        node.attr["b"].list.func.add().name = name
    node.attr["c"].i = 1
    return node
