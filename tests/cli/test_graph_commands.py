"""`paramsync graph show` and `graph tensorboard`: graphs of every kind, and files of strangers, without TensorFlow."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paramsync.cli.__main__ import main
from paramsync.graphs.capturing import capture
from paramsync.store.commit import StoreWriter
from paramsync.v1 import graph_def_pb2 as pb
from paramsync.v1 import graph_pb2
from tests.support.commands import json_of, only_line
from tests.support.written import version

v1 = tf.compat.v1


class Model(tf.Module):
    """Two variables, one of them read in a branch, and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(tf.ones((4, 3)))
        self.bias = tf.Variable(tf.zeros(3))

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")], autograph=False)
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        shifted = tf.cond(tf.reduce_sum(x) > 0, lambda: x @ self.kernel + self.bias, lambda: x @ self.kernel)
        return {"y": tf.nn.tanh(shifted), "noise": tf.random.uniform([3])}


@pytest.fixture(scope="module")
def captured() -> Any:
    return capture(Model()).graph


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, captured: Any) -> Path:
    """A store, a graph file, SavedModels of TensorFlow 2 and 1, a store of Saver's, a frozen graph."""
    folder = tmp_path_factory.mktemp("sources")
    with StoreWriter(folder / "store") as writer:
        writer.add_graph(captured.digest, captured.to_bytes())
        kernel, bias = np.ones((4, 3), np.float32), np.zeros(3, np.float32)
        writer.commit(version(7, graph=captured.digest), {"kernel": kernel, "bias": bias})
    (folder / "any_name.pb").write_bytes(captured.to_bytes())
    tf.saved_model.save(Model(), str(folder / "saved"))
    _write_v1(folder)
    return folder


def _write_v1(folder: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        kernel = v1.get_variable("kernel", [4, 3], use_resource=True)
        bias = v1.get_variable("bias", [3], use_resource=False)
        y = tf.nn.softmax(x @ kernel + bias, name="probabilities")
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(y, name="loss"))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "v1" / "model"), global_step=3)
        v1.saved_model.simple_save(session, str(folder / "saved1"), {"x": x}, {"y": y})
        frozen = tf.compat.v1.GraphDef()
        frozen.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
        frozen.node.add(name="y", op="Tanh", input=["x"]).attr["T"].type = 1
        (folder / "frozen.pb").write_bytes(frozen.SerializeToString())


def test_a_store_shows_the_graph_of_its_newest_version(
    sources: Path, captured: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json_of(["graph", "show", str(sources / "store")], capsys)
    assert (found["kind"], found["digest"]) == ("graph file", captured.digest)
    (signature,) = found["signatures"].values()
    assert [(one["name"], one["dtype"], one["shape"]) for one in signature["inputs"]] == [("x", "float32", [None, 4])]
    assert [(one["name"], one["dtype"]) for one in signature["outputs"]] == [("noise", "float32"), ("y", "float32")]
    assert [(one["name"], one["shape"], one["bytes"]) for one in found["parameters"]] == [
        (spec.name, list(spec.shape), 4 * int(np.prod(spec.shape))) for spec in captured.parameters
    ]
    assert found["parameter_bytes"] == 60
    assert (found["ops"]["Tanh"], found["ops"]["MatMul"]) == (1, 2)
    assert (found["stochastic"], found["unsafe"]) == (["RandomUniform"], [])


@pytest.mark.parametrize(
    ("name", "kind", "ends", "parameters", "stochastic"),
    [
        ("any_name.pb", "graph file", [], None, ["RandomUniform"]),
        (
            "saved",
            "SavedModel",
            [],
            [f"{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("bias", "kernel")],
            ["RandomUniform"],
        ),
        ("saved/saved_model.pb", "SavedModel", [], None, ["RandomUniform"]),
        ("saved1", "SavedModel", [], ["bias", "kernel"], []),
        ("v1", "meta graph", ["loss"], ["bias", "kernel"], []),  # not what training added
        ("v1/model-3.meta", "meta graph", ["loss"], ["bias", "kernel"], []),
        ("frozen.pb", "frozen graph", ["y"], [], []),
    ],
)
def test_every_kind_of_graph_is_shown(
    name: str,
    kind: str,
    ends: list[str],
    parameters: list[str] | None,
    stochastic: list[str],
    sources: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = json_of(["graph", "show", str(sources / name)], capsys)
    assert (told["kind"], told["ends"], told["stochastic"]) == (kind, ends, stochastic)
    assert told["unsafe"] == []  # saving and restoring are in a SavedModel, but no output needs them
    assert [spec["name"] for spec in told["placeholders"]] == (["x"] if ends else [])
    assert parameters is None or [spec["name"] for spec in told["parameters"]] == parameters
    assert main(["graph", "show", str(sources / name)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith(str(sources / name))
    assert any(line.split()[:1] == ["op"] for line in lines)


def test_files_that_were_damaged_are_shown_or_refused(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = random.Random(0)
    whole = [sources / "any_name.pb", sources / "saved" / "saved_model.pb", sources / "v1" / "model-3.meta"]
    for path in whole:
        for _ in range(60):
            content = bytearray(path.read_bytes())
            for _ in range(chosen.choice((1, 3, 30))):
                content[chosen.randrange(len(content))] = chosen.randrange(256)
            damaged = tmp_path / path.name
            damaged.write_bytes(content[: chosen.choice((len(content), chosen.randrange(len(content))))])
            assert main(["graph", "show", str(damaged)]) in (0, 1)
            capsys.readouterr()


@pytest.mark.parametrize("name", ["store", "saved", "v1", "frozen.pb"])
def test_tensorboard_gets_a_graph_that_tensorflow_reads(
    name: str, sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "deep" / "logs"
    found = json_of(["graph", "tensorboard", str(sources / name), str(logs)], capsys)
    assert list(logs.iterdir()) == [Path(found["file"])]
    first, second = v1.train.summary_iterator(found["file"])
    assert first.file_version == "brain.Event:2"
    graph = v1.GraphDef.FromString(second.graph_def)
    ops = {node.op for nodes in (graph.node, *(one.node_def for one in graph.library.function)) for node in nodes}
    assert ops >= json_of(["graph", "show", str(sources / name)], capsys)["ops"].keys()
    assert len(list(tf.data.TFRecordDataset(found["file"]))) == 2
    assert main(["graph", "tensorboard", str(sources / name), str(logs)]) == 0
    assert capsys.readouterr().out.endswith(f"tensorboard --logdir {logs}\n")
    assert main(["graph", "tensorboard", str(sources / name), found["file"]]) == 1
    assert "cannot be written: File exists" in only_line(capsys.readouterr().err)


def test_graphs_are_shown_without_tensorflow(sources: Path) -> None:
    code = f"""
import sys
from paramsync.cli.__main__ import main
from paramsync.cli.graph_files import Outline
from paramsync.errors import GraphError
assert main(["graph", "show", {str(sources / "store")!r}]) == 0
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_parameters_of_a_compiled_keras_model_are_shown_by_the_names_of_its_variables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="hidden")], name="small")
    model.compile("adam", "mse")
    found = capture(model)
    names = [spec.name for spec in found.graph.parameters]
    with StoreWriter(tmp_path) as writer:
        writer.add_graph(found.graph.digest, found.graph.to_bytes())
        values = {name: variable.numpy() for name, variable in zip(names, found.variables, strict=True)}
        writer.commit(version(7, graph=found.graph.digest), values)
    for command in (["graph", "show"], ["verify"]):
        assert main([*command, str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert "small/hidden/kernel" in shown
        assert "optimizer" not in shown
    graph = json_of(["graph", "show", str(tmp_path)], capsys)["parameters"]
    (verified,) = json_of(["verify", str(tmp_path)], capsys)["versions"]
    for listed in (graph, verified["tensors"]):
        assert sorted(one["variable"] for one in listed) == ["small/hidden/bias", "small/hidden/kernel"]
        assert sorted(one["name"] for one in listed) == sorted(names)


def test_a_link_in_a_store_or_a_saved_model_is_not_followed_and_one_that_is_named_is(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sources / "saved", tmp_path / "saved")
    (tmp_path / "saved" / "saved_model.pb").rename(tmp_path / "elsewhere")
    (tmp_path / "saved" / "saved_model.pb").symlink_to(tmp_path / "elsewhere")
    shutil.copytree(sources / "store", tmp_path / "store")
    (graph,) = (tmp_path / "store").glob("graph-*.pb")
    graph.rename(tmp_path / "graph")
    graph.symlink_to(tmp_path / "graph")
    for source in (tmp_path / "saved", tmp_path / "store"):
        assert main(["graph", "show", str(source)]) == 1
        assert "found a symbolic link" in capsys.readouterr().err
    assert main(["graph", "show", str(graph)]) == 0


# Files that nobody has checked are shown harmlessly, or refused in one line -----------------------------------------


def test_lookup_tables_are_listed_with_how_much_they_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys, values = tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64)
    packed = [tf.make_tensor_proto(one).SerializeToString() for one in (keys, values)]
    table = graph_pb2.Table(node="vocabulary", keys=packed[0], values=packed[1])
    _write(tmp_path, [pb.NodeDef(name="x", op="Placeholder")], tables=[table])
    found = json_of(["graph", "show", str(tmp_path / "graph.pb")], capsys)
    assert found["tables"] == [{"node": "vocabulary", "keys": "string", "values": "int64", "entries": 2}]
    assert main(["graph", "show", str(tmp_path / "graph.pb")]) == 0
    assert "vocabulary" in capsys.readouterr().out


def test_ops_that_are_not_safe_are_named_where_an_output_needs_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called = pb.FunctionDef(signature={"name": "inner"}, node_def=[_packed(name="w", op="WriteFile")])
    library = pb.FunctionLibrary(function=[called.SerializeToString()])
    calling = pb.NodeDef(name="y", op="PartitionedCall", input=["x"])
    calling.attr["f"].func.name = "inner"
    nodes = [pb.NodeDef(name="x", op="Placeholder"), calling, pb.NodeDef(name="z", op="PyFunc", input=["x"])]
    _write(tmp_path, nodes, library=library, output="y:0")
    assert json_of(["graph", "show", str(tmp_path / "graph.pb")], capsys)["unsafe"] == ["WriteFile"]
    assert main(["graph", "show", str(tmp_path / "graph.pb")]) == 0
    text = capsys.readouterr().out
    assert "not on the list of safe ops: WriteFile" in text
    assert sum("not safe" in line for line in text.splitlines()) == 1


def test_names_that_mean_harm_to_a_terminal_are_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path, [pb.NodeDef(name="\x1b[2J", op="Place\x07"), pb.NodeDef(name="a" * 10_000, op="[bold]")])
    assert main(["graph", "show", str(tmp_path / "graph.pb")]) == 0
    text = capsys.readouterr().out
    assert r"Place\x07" in text
    assert "[bold]" in text
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text) < 5000


@pytest.mark.parametrize("name", ["graph-0123.pb", "model.meta", "frozen.pb", "saved_model.pb"])
@pytest.mark.parametrize("content", [b"", b"\x08", b"\xff" * 100, b"\x0a\x00" * 100])
def test_a_file_that_is_no_graph_is_one_line(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["graph", "show", str(tmp_path / name)]) == 1
    assert only_line(capsys.readouterr().err).startswith(f"paramsync graph: {tmp_path / name}: expected ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("a.pb", b"\x0a\x00"),  # nodes
        ("b.pb", b"\x0a\x08\x0a\x01a\x12\x01b\x1a\x00"),  # nodes that are whole
        ("c.meta", b"\x2a\x00"),  # signatures
        ("d.pb", b"\x08\x01\x12\x00"),  # graphs of a SavedModel
        ("e.pb", b"\x12\x00\x22\x01a"),  # parameters of a graph file
    ],
)
def test_files_that_would_unfold_in_memory_are_refused(
    name: str, unit: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(unit * ((24 << 20) // len(unit)))
    code = f"""
import resource
from paramsync.cli.__main__ import main
from paramsync.cli.graph_files import Outline
from paramsync.errors import GraphError
limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (2 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
raise SystemExit(main(["graph", "show", {str(tmp_path / name)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert only_line(done.stderr).startswith(f"paramsync graph: {tmp_path / name}: expected ")


def test_loops_and_functions_that_call_themselves_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = pb.FunctionDef(signature={"name": "f"}, node_def=[_packed(name="f", op="f")])
    library = pb.FunctionLibrary(function=[again.SerializeToString()])
    nodes = [pb.NodeDef(name="x", op="Merge", input=["y"]), pb.NodeDef(name="y", op="f", input=["x", "^y"])]
    _write(tmp_path, nodes, library=library, output="y:0")
    assert json_of(["graph", "show", str(tmp_path / "graph.pb")], capsys)["ops"] == {"Merge": 1}


def test_what_leads_to_no_graph_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, why in (
        (tmp_path / "nosuch", "cannot be read: No such file or directory"),
        (tmp_path, "expected a store with a version or a graph, or a SavedModel, found none of them"),
    ):
        assert main(["graph", "show", str(path)]) == 1
        assert only_line(capsys.readouterr().err) == f"paramsync graph: {path}: {why}"
    tf.train.Checkpoint(x=tf.Variable(1.0)).save(str(tmp_path / "ckpt"))
    assert main(["graph", "show", str(tmp_path)]) == 1
    assert "version 1 came without a graph: expected ckpt-1.meta" in only_line(capsys.readouterr().err)


def _packed(*, name: str, op: str) -> bytes:
    return pb.NodeDef(name=name, op=op).SerializeToString()


def _write(
    folder: Path,
    nodes: list[pb.NodeDef],
    *,
    library: pb.FunctionLibrary | None = None,
    output: str = "x:0",
    tables: list[graph_pb2.Table] | None = None,
) -> None:
    """A graph file, graph.pb, that nobody has checked."""
    graph_def = pb.GraphDef(
        node=[one.SerializeToString() for one in nodes], library=b"" if library is None else library.SerializeToString()
    )
    message = graph_pb2.Graph(graph_def=graph_def.SerializeToString(), digest="0" * 32, tables=tables or [])
    message.signatures["serving_default"].outputs.add(name="y", tensor=output, dtype=1)
    (folder / "graph.pb").write_bytes(message.SerializeToString())
