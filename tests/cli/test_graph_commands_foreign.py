"""`paramsync graph show` of files that nobody has checked: shown harmlessly, or refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from paramsync.cli.__main__ import main
from paramsync.cli.outline import Outline
from paramsync.errors import GraphError
from paramsync.v1 import graph_def_pb2 as pb
from paramsync.v1 import graph_pb2
from tests.support.commands import json_of, only_line

pytestmark = pytest.mark.usefixtures("eighty_columns")


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
@pytest.mark.parametrize("content", [b"", b"\x08", b"\xff" * 100, b"\x0a\x00" * 100, b"\x0a\x7f" * 9, b"\x12\x00"])
def test_a_file_that_is_no_graph_is_one_line(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["graph", "show", str(tmp_path / name)]) == 1
    assert only_line(capsys.readouterr().err).startswith(f"paramsync graph: {tmp_path / name}: expected ")


def test_more_nodes_than_can_be_served_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paramsync.cli.outline.NODES", 3)
    content = pb.GraphDef(node=[_packed(name=f"n{at}", op="NoOp") for at in range(4)]).SerializeToString()
    with pytest.raises(GraphError, match="expected at most 3"):
        Outline(content, "it")


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


def test_nothing_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "show", str(tmp_path / "nosuch")]) == 1
    line = only_line(capsys.readouterr().err)
    assert line == f"paramsync graph: {tmp_path / 'nosuch'}: cannot be read: No such file or directory"


def test_a_directory_without_a_graph_says_what_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "show", str(tmp_path)]) == 1
    assert "expected a store with a version or a graph, or a SavedModel" in only_line(capsys.readouterr().err)


def test_a_version_without_a_graph_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
