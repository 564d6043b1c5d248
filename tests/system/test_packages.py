"""What people install: a wheel and an sdist of one name, whole with TensorFlow, and of use without; an image."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.programs import ROOT
from tests.support.training import Affine, answer, put

UV = Path(sys.executable).parent / "uv"
PUBLISHES = """
import sys
import ml_dtypes, numpy as np
from paramsync import Publisher, PublishSchedule
with Publisher.of_graph(sys.argv[1], schedule=PublishSchedule(every_steps=1)) as publisher:
    values = {"scale_of_all": np.full(4, 3, np.float32), "shift_of_all": np.full(4, 2, ml_dtypes.bfloat16)}
    publisher.publish(5, values=values, wait=True)
assert not {"tensorflow", "keras"} & {*sys.modules}
"""


def run(*command: str | Path, folder: Path, code: int = 0) -> str:
    """What a command says where it does well, and else of what is wrong, in a folder where nothing of ours lies."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, (command, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout + done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("built")
    for kind in ("wheel", "sdist"):
        run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder, folder=ROOT)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def installed(folder: Path, *requirements: str | Path) -> Path:
    """The commands of a fresh environment."""
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", folder=folder)
    run(UV, "pip", "install", "--quiet", "--python", folder / "venv", *requirements, folder=folder)
    return folder / "venv" / "bin"


@pytest.mark.slow
def test_the_wheel_has_one_name_at_the_top_and_no_tests(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top.partition("-")[0] for top in tops} == {"paramsync"}
    assert {"paramsync/py.typed", "paramsync/trainer/__main__.py", "paramsync/inferencer/__main__.py"} <= {*names}
    assert not [name for name in names if "test" in name or "bench" in name]
    with tarfile.open(built["sdist"]) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "trainer/__main__.py", "inferencer/__main__.py"} <= held


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_is_installed_trains_serves_and_shows_it(kind: str, built: dict[str, Path], tmp_path: Path) -> None:
    locked = ROOT / "requirements.lock"
    commands = installed(tmp_path, "--constraints", locked, f"paramsync[tensorflow] @ {built[kind].as_uri()}")
    assert run(commands / "paramsync", "--version", folder=tmp_path).startswith("paramsync 0.")
    for program in ("train", "serve"):
        assert "usage: " in run(commands / "paramsync", program, "--help", folder=tmp_path)
    ports = [f"--{name}port=0" for name in ("", "rest-", "control-", "trainer-")]
    said = run(commands / "paramsync", "up", "--seconds", "5", "--json", *ports, folder=tmp_path)
    summary = json.loads(said.splitlines()[-1])
    assert summary["served"] > 0, summary
    for name in ("trainer", "inferencer", "bench", "tests"):
        run(commands / "python", "-c", f"import {name}", folder=tmp_path, code=1)


@pytest.mark.slow
def test_without_tensorflow_there_are_commands_and_a_publisher(built: dict[str, Path], tmp_path: Path) -> None:
    commands = installed(tmp_path, "--constraints", ROOT / "requirements.lock", built["wheel"])
    put(tmp_path / "store", Affine())
    run(commands / "python", "-c", PUBLISHES, tmp_path / "store", folder=tmp_path)
    assert answer(tmp_path / "store") == [5.0] * 4
    assert "5" in run(commands / "paramsync", "versions", tmp_path / "store", folder=tmp_path)
    assert "5" in run(commands / "paramsync", "verify", tmp_path / "store", folder=tmp_path)
    hint = f"pip install 'paramsync[tensorflow] @ {built['wheel'].as_uri()}'"
    assert hint in run(commands / "paramsync", "serve", "--model", "m=store", folder=tmp_path, code=2)
    assert hint in run(commands / "paramsync", "up", folder=tmp_path, code=2)
    published = run(commands / "paramsync", "graph", "publish", "models:build", "store", folder=tmp_path, code=2)
    assert hint in published
    assert published.count("\n") == 1
    for line in ("from paramsync import Follower", "import paramsync.keras", "import paramsync.session"):
        assert hint in run(commands / "python", "-c", line, folder=tmp_path, code=1)
    assert hint in run(commands / "python", "-c", "from paramsync.graphs import capture", folder=tmp_path, code=1)


def test_what_the_image_copies_is_sent_to_the_build() -> None:
    copied = re.findall(r"^COPY (?!--)(\S+) ", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in (one.replace("${REQUIREMENTS}", "requirements.lock") for one in copied):
        assert any(fnmatch(path, pattern) for pattern in sent), path
        assert (ROOT / path).exists(), path
    assert len(copied) > 5
