"""The README's own lines work: its Python and its commands are run as they stand, and so are those of the pages."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from paramsync.store.store import Store
from tests.support.programs import ROOT, Program, eventually

pytestmark = pytest.mark.slow

v1 = tf.compat.v1
KEPT_STORE = "/dev/shm/digits"


def blocks(page: str, language: str) -> list[str]:
    """A page's blocks of code in one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def block(page: str, language: str, part: str) -> str:
    """The only block with this in it."""
    (only,) = [text for text in blocks(page, language) if part in text]
    return only


def python(script: str) -> str:
    """What it prints; fails where it does not end well."""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def paramsync(*words: str | Path) -> str:
    """What the command prints; fails where its exit code is not 0."""
    command = [sys.executable, "-m", "paramsync.cli", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def serving(line: str, log: Path) -> Program:
    """The server that a line starts, at free ports."""
    program, *words = shlex.split(line)
    assert program == "paramsync"
    return Program("paramsync.cli", *words, "--port", "0", "--rest-port", "0", "--control-port", "0", log=log)


def test_what_the_readme_says_to_train_serve_call_and_operate_works(tmp_path: Path) -> None:
    store = tmp_path / "digits"
    python(block("README.md", "python", "PublishCallback").replace(KEPT_STORE, str(store)))
    latest = Store(store).latest()
    assert latest is not None
    line = block("README.md", "sh", "--model digits=").replace(KEPT_STORE, str(store))
    with serving(line, tmp_path / "log") as server:
        address = server.said(r"predictions (\S+:\d+)")[1]
        control, rest = server.said(r"control (\S+:\d+), HTTP (\S+:\d+)").groups()
        eventually(lambda: f'"number": {latest.number}' in paramsync("status", "--inferencer", control, "--json"), str)
        call = block("README.md", "python", "PredictionServiceStub").replace("127.0.0.1:8500", address)
        assert re.search(rf"^{latest.number} \[\[", python(call), re.MULTILINE)
        kserve = block("docs/call.md", "python", "tritonclient").replace("127.0.0.1:8500", address)
        assert re.search(rf"^\[\[.*\]\] {latest.number}$", python(kserve), re.DOTALL)
        np.save(tmp_path / "images.npy", np.zeros((10, 784), np.float32))
        ask = block("docs/call.md", "sh", "paramsync predict").replace("images.npy", str(tmp_path / "images.npy"))
        assert f"version {latest.number}" in paramsync(*shlex.split(ask)[1:], "--server", address)
        body = json.dumps({"instances": [[0.0] * 784]}).encode()
        with urllib.request.urlopen(f"http://{rest}/v1/models/digits:predict?model_spec", body) as answer:
            assert json.load(answer)["model_spec"]["version"] == str(latest.number)
        for line in block("README.md", "sh", "paramsync status").splitlines():
            words = shlex.split(line.replace(KEPT_STORE, str(store)).replace("420", str(latest.number)), comments=True)
            paramsync(*words[1:], *([] if str(store) in words else ["--inferencer", control]))
        assert server.stop() == 0
    rows = re.findall(r"^\| `paramsync ((?:versions|verify|graph show|graph tensorboard) [^`]*)`", operating(), re.M)
    assert len(rows) == 4
    for row in rows:
        paramsync(*row.replace(KEPT_STORE, str(store)).replace(" logs", f" {tmp_path / 'logs'}").split())


def operating() -> str:
    return (ROOT / "docs" / "operate.md").read_text()


def test_a_script_that_saves_is_served_as_the_readme_says(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        tf.nn.softmax(tf.matmul(x, v1.get_variable("weights", [4, 2])), name="probabilities")
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "store" / "model"), global_step=7)
    line = block("README.md", "sh", "--model mlp=").replace("/var/tmp/mlp", str(tmp_path / "store"))
    with serving(line, tmp_path / "log") as server:
        address = server.said(r"predictions (\S+:\d+)")[1]
        server.said(r"version 7")
        answer = paramsync("predict", "mlp", "--input", "x=[[1, 2, 3, 4]]", "--server", address, "--json")
        assert json.loads(answer)["version"] == 7


def test_what_the_readme_does_to_graphs_works() -> None:
    python(block("README.md", "python", "duplicate"))


def test_a_loop_of_ones_own_publishes_its_last_step(tmp_path: Path) -> None:
    python(block("docs/train-with-keras.md", "python", "publish_if_due").replace(KEPT_STORE, str(tmp_path)))
    latest = Store(tmp_path).latest()
    assert latest is not None
    assert latest.step == 500


def test_values_of_jax_are_published_as_the_page_says(tmp_path: Path) -> None:
    lines = block("docs/train-with-jax-or-pytorch.md", "sh", "graph publish").replace("/dev/shm/signs", str(tmp_path))
    graph, train = map(shlex.split, lines.splitlines())
    paramsync(*graph[1:])
    backend, _, *words = train
    environment = {**os.environ, **dict([backend.split("=")])}
    subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=True)
    assert len(Store(tmp_path).versions()) > 1


def test_pages_repeat_the_readme_to_the_letter() -> None:
    fit = block("README.md", "python", "PublishCallback")
    assert block("docs/quickstart.md", "python", "PublishCallback") == fit
    assert block("docs/train-with-keras.md", "python", "epochs=3") == fit
    assert block("docs/call.md", "python", "PredictionServiceStub") == block("README.md", "python", "Predict")
    for page, model in (("quickstart", "digits"), ("serve", "digits"), ("train-with-tf1", "mlp")):
        line = f"--model {model}="
        assert block(f"docs/{page}.md", "sh", line) == block("README.md", "sh", line)
