"""`paramsync graph publish`: the graph of a model is in a store before anything is trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.cli.__main__ import main
from paramsync.following.replica import Replica
from paramsync.graphs.graph import Graph
from paramsync.store.commit import StoreWriter
from paramsync.store.store import Store
from tests.support.json_forms import check
from tests.support.programs import ROOT
from trainer import graph_publish

MODELS = """
print("said while it is imported")
import keras
import tensorflow as tf
from paramsync.graphs.capturing import capture

class Scaled(tf.Module):
    def __init__(self):
        super().__init__()
        self.scale = tf.Variable(2.0, name="factor")

    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def __call__(self, x):
        return x * self.scale

def module():
    print("said while it is built")
    return Scaled()

def captured():
    model = Scaled()
    return capture(model, signatures={"one": model.__call__})

def by_python():
    class ByPython(Scaled):
        @tf.function(input_signature=[tf.TensorSpec([], name="x")])
        def __call__(self, x):
            return tf.ensure_shape(tf.numpy_function(lambda one: one, [x * self.scale], tf.float32), [])

    return ByPython()

def failing():
    raise ValueError("no such size:\\n7")

def ending():
    raise SystemExit(3)

def backend():
    assert keras.backend.backend() == "tensorflow"
    return Scaled()

instance = Scaled()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "their_models.py").write_text(MODELS)
    (tmp_path / "broken.py").write_text("import tensorflow\n\nx = 1 / 0\n")
    (tmp_path / "lacking.py").write_text("import no_such_module_as_this\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("their_models", "broken", "lacking"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("name", ["module", "captured", "instance"])
def test_a_graph_is_put_into_a_store_that_need_not_be_there(
    here: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert graph_publish.main([f"their_models:{name}", "store"]) == 0
    found = json.loads(capsys.readouterr().out)
    graph = Graph.load(here / found["path"])
    assert (found["digest"], found["parameters"]) == (graph.digest, 1)
    assert graph.message().parameters[0].variable == "factor"
    assert graph.object_graph
    assert Store(here / "store").latest() is None


def test_people_get_one_line_and_programs_one_object(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # is not asked
    assert main(["graph", "publish", "their_models:backend", "store"]) == 0
    (path,) = (here / "store").glob("graph-*.pb")
    digest = path.stem.removeprefix("graph-")
    assert capfd.readouterr() == (f"graph {digest} with 1 parameters is in store/{path.name}\n", "")
    assert main(["graph", "show", "store"]) == 0
    capfd.readouterr()
    assert main(["graph", "publish", "their_models:by_python", "store", "--allow-op", "PyFunc", "--json"]) == 0
    out, err = capfd.readouterr()
    assert (json.loads(out)["parameters"], err) == (1, "")
    check(json.loads(out), "published_graph")
    assert main(["graph", "publish", "their_models:failing", "store"]) == 1
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("paramsync graph: ")


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("their_models", 2, "expected MODULE:BUILD, such as models.digits:build, found 'their_models'"),
        ("none.models:build", 2, "expected a module none.models in "),
        (
            "lacking:build",
            2,
            "module lacking cannot be imported: ModuleNotFoundError: No module named 'no_such_module_as_this'",
        ),
        ("broken:build", 1, "module broken cannot be imported: ZeroDivisionError: division by zero ("),
        ("their_models:none", 2, "expected a function 'none' in "),
        ("their_models:by_python", 1, "not on the list of those that only compute: 'PyFunc' (node "),
        ("their_models:failing", 1, "their_models:failing failed: ValueError: no such size: 7 ("),
        ("their_models:ending", 1, "their_models:ending failed: SystemExit: 3 ("),
    ],
)
def test_what_cannot_be_published_is_told_in_one_line(
    here: Path, target: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert graph_publish.main([target, "store"]) == code
    out, err = capsys.readouterr()
    err = err.removeprefix("said while it is imported\n")
    assert out == ""
    assert err.startswith("trainer.graph_publish: ")
    assert message in err
    assert err.count("\n") == 1
    assert not (here / "store").exists()


def test_a_store_that_cannot_be_written_is_told_of(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StoreWriter(here / "store"):
        assert graph_publish.main(["their_models:module", "store"]) == 1
    assert "already has a publisher" in capsys.readouterr().err
    (here / "file").touch()
    assert graph_publish.main(["their_models:module", "file"]) == 1
    assert "expected a directory, found a file" in capsys.readouterr().err


TRAIN = """
import sys
import numpy as np
from examples.jax_trainer import main
model = main(sys.argv[1])
assert "tensorflow" not in sys.modules
np.savez(sys.argv[2], **{one.path: np.asarray(one.value) for one in model.variables})
x = np.linspace(-1, 1, 80, dtype=np.float32).reshape(10, 8)
np.savez(sys.argv[3], x=x, y=np.asarray(model.predict_on_batch(x)))
"""


@pytest.mark.promise
@pytest.mark.slow
def test_a_trainer_on_jax_and_a_follower_on_tensorflow_end_on_the_same_parameters(tmp_path: Path) -> None:
    store, trained, answers = tmp_path / "store", tmp_path / "trained.npz", tmp_path / "answers.npz"
    publish = [sys.executable, "-m", "paramsync.cli", "graph", "publish", "examples.jax_trainer:build", str(store)]
    subprocess.run(publish, cwd=ROOT, check=True, timeout=300)
    train = [sys.executable, "-c", TRAIN, str(store), str(trained), str(answers)]
    subprocess.run(train, cwd=ROOT, check=True, timeout=300, env=os.environ | {"KERAS_BACKEND": "jax"})
    latest = Store(store).latest()
    assert latest is not None
    assert (latest.step, len(Store(store).versions())) == (300, 5)
    replica = Replica("signs", Store(store))
    restored = replica.restore(latest)
    replica.swap(restored)
    parameters = dict(zip([one.name for one in restored.graph.parameters], restored.parameters, strict=True))
    variables = {one.name: one.variable for one in restored.graph.message().parameters}
    with np.load(trained) as expected:
        assert set(variables.values()) <= set(expected.files)
        for name, value in parameters.items():
            np.testing.assert_array_equal(value, expected[variables[name]], err_msg=name)
    with np.load(answers) as expected:
        outputs, _ = replica.predict({"x": expected["x"]})
        np.testing.assert_allclose(outputs["probability"], expected["y"], rtol=1e-5, atol=1e-6)
    assert latest.metrics["loss"] < 0.5
    assert tf.train.latest_checkpoint(store) == str(store / latest.prefix)
