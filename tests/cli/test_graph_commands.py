"""`paramsync graph`: what is in graphs of every kind, shown without TensorFlow, and given to TensorBoard."""

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


pytestmark = pytest.mark.usefixtures("eighty_columns")


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


def test_a_graph_file_may_have_any_name(sources: Path, captured: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert json_of(["graph", "show", str(sources / "any_name.pb")], capsys)["digest"] == captured.digest


def test_a_saved_model_shows_its_signatures_and_the_keys_of_its_checkpoint(
    sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (sources / "saved", sources / "saved" / "saved_model.pb"):
        found = json_of(["graph", "show", str(path)], capsys)
        assert found["kind"] == "SavedModel"
        assert list(found["signatures"]) == ["serving_default"]
        assert [one["name"] for one in found["signatures"]["serving_default"]["inputs"]] == ["x"]
        assert [one["name"] for one in found["parameters"]] == [
            "bias/.ATTRIBUTES/VARIABLE_VALUE",
            "kernel/.ATTRIBUTES/VARIABLE_VALUE",
        ]
        assert found["stochastic"] == ["RandomUniform"]
        assert found["unsafe"] == []  # saving and restoring are in the file, but no output needs them
        assert found["ops"]["SaveV2"] == 1


def test_a_saved_model_of_tensorflow_1_names_variables_as_saver_does(
    sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json_of(["graph", "show", str(sources / "saved1")], capsys)
    assert [one["tensor"] for one in found["signatures"]["serving_default"]["outputs"]] == ["probabilities:0"]
    assert [one["name"] for one in found["parameters"]] == ["bias", "kernel"]


def test_a_store_of_savers_shows_where_its_meta_graph_begins_and_ends(
    sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (sources / "v1", sources / "v1" / "model-3.meta"):
        found = json_of(["graph", "show", str(path)], capsys)
        assert (found["kind"], found["signatures"]) == ("meta graph", {})
        assert [one["name"] for one in found["placeholders"]] == ["x"]
        assert found["ends"] == ["loss"]  # not what training added
        assert [(one["name"], one["shape"]) for one in found["parameters"]] == [("bias", [3]), ("kernel", [4, 3])]
        assert (found["stochastic"], found["unsafe"]) == ([], [])


def test_a_frozen_graph_shows_where_it_begins_and_ends(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(["graph", "show", str(sources / "frozen.pb")], capsys)
    assert (found["kind"], found["ends"]) == ("frozen graph", ["y"])
    assert [(one["name"], one["shape"]) for one in found["placeholders"]] == [("x", None)]
    assert found["ops"] == {"Placeholder": 1, "Tanh": 1}


@pytest.mark.parametrize("name", ["store", "any_name.pb", "saved", "saved1", "v1", "frozen.pb"])
def test_what_is_shown_fits_in_80_columns(name: str, sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "show", str(sources / name)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith(str(sources / name))
    assert any(line.split()[:1] == ["op"] for line in lines)
    assert max(map(len, lines)) <= 80


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


@pytest.mark.parametrize("name", ["store", "saved", "saved1", "v1", "frozen.pb"])
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


def test_tensorboard_says_how_to_look(sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "tensorboard", str(sources / "store"), str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(f"tensorboard --logdir {tmp_path}\n")


def test_a_place_that_cannot_be_written_is_one_line(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["graph", "tensorboard", str(sources / "store"), str(tmp_path / "file")]) == 1
    assert "cannot be written: File exists" in only_line(capsys.readouterr().err)


def test_graphs_are_shown_without_tensorflow(sources: Path) -> None:
    code = f"""
import sys
from paramsync.cli.__main__ import main
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
