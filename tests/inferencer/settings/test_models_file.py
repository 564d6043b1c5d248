"""The file that names the models: what it may say, and the one line for each mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferencer.settings.settings import ConnectionSettings, ModelSettings, Settings, parse
from paramsync.errors import SettingsError
from tests.support.programs import ROOT

FULL = """\
[server]
host = "0.0.0.0"
port = 9500
rest_port = 9501
control_port = 9502
poll_seconds = 2.5
state = "state"
reload_roots = ["/stores", "stores"]
allow_hosts = ["models.example", "here"]
queue = 64
batch_rows = 1
max_message_mb = 8
log_format = "json"

[models.encoder]
store = "/stores/encoder"
resident = 3
verify = "checksums"
trainer = "127.0.0.1:8503"
allow_op = ["ReadFile"]
labels = { stable = 420, canary = 421 }
batching = false

[models.head]
store = "head"
inputs = ["x:0"]
outputs = ["y:0", "z:0"]

[models.third]
store = "third"
graph = "graphs/third"

[models.joined]
connect = ["encoder", "head"]
inputs = { features = "embedding" }
outputs = ["embedding"]
"""


def config(folder: Path, text: str) -> Path:
    path = folder / "models.toml"
    path.write_text(text)
    return path


def test_a_file_says_everything_that_flags_do_and_more(tmp_path: Path) -> None:
    encoder = ModelSettings(
        name="encoder",
        store=Path("/stores/encoder"),
        resident=3,
        verify="checksums",
        trainer="127.0.0.1:8503",
        allowed=("ReadFile",),
        labels={"stable": 420, "canary": 421},
        batching=False,
    )
    head = ModelSettings(name="head", store=tmp_path / "head", inputs=("x:0",), outputs=("y:0", "z:0"))
    third = ModelSettings(name="third", store=tmp_path / "third", graph=tmp_path / "graphs/third")
    joined = ConnectionSettings(
        name="joined", first="encoder", second="head", inputs={"features": "embedding"}, outputs=("embedding",)
    )
    assert parse(["--config", str(config(tmp_path, FULL))]) == Settings(
        models=(encoder, head, third, joined),
        host="0.0.0.0",
        port=9500,
        rest_port=9501,
        control_port=9502,
        poll_seconds=2.5,
        state=tmp_path / "state",
        reload_roots=(Path("/stores"), tmp_path / "stores"),
        allowed_hosts=("models.example", "here"),
        queue=64,
        batch_rows=1,
        message_bytes=8 << 20,
        log_format="json",
    )


def test_a_flag_counts_more_than_the_file(tmp_path: Path) -> None:
    found = parse(["--config", str(config(tmp_path, FULL)), "--port", "7000", "--state", "/elsewhere"])
    assert (found.port, found.rest_port, found.state) == (7000, 9501, Path("/elsewhere"))


def test_the_example_can_be_read() -> None:
    found = parse(["--config", str(ROOT / "deploy/models.toml")])
    assert [type(one) for one in found.models] == [ModelSettings, ModelSettings, ConnectionSettings]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected one [models.NAME] or more, found none"),
        ("models = 3\n", "expected one [models.NAME] or more, found 3"),
        ("[model.a]\nstore = '/s'\n", "expected [server] and [models.NAME], found 'model'"),
        ("[models.a]\nstore = /s\n", "expected TOML in UTF-8, found a mistake: Invalid value (at line 2, column 9)"),
        ("a = " + "[" * 20_000, "expected TOML, found lists in lists without end"),
        ("server = 'here'\n", "[server] expected a table, found 'here'"),
        ("[server]\nports = 1\n", "[server] ports: expected one of host, port, rest_port, control_port, poll_seconds,"),
        ("[server]\nport = '1'\n", "[server] port: expected a whole number, found '1'"),
        ("[server]\npoll_seconds = 0\n", "[server] poll_seconds: expected seconds above 0, found '0'"),
        ("[server]\nreload_roots = '/s'\n", "[server] reload_roots: expected a list of texts, found '/s'"),
        ("[models.'a b']\nstore = '/s'\n", "[models.a b] expected a name of letters, digits, '_', '.' and '-'"),
        (
            "[models.a]\nstore = '/s'\nlabels = {" + ", ".join(f"n{at} = 1" for at in range(257)) + "}\n",
            "[models.a] labels: expected at most 256 labels, found 257",
        ),
        ("[models]\na = 1\n", "[models.a] expected a table, found 1"),
        ("[models.a]\n", "[models.a] expected store, or connect = [FIRST, SECOND], found neither"),
        ("[models.a]\nstore = '/s'\nconnect = ['b', 'c']\n", "[models.a] expected store, or connect ="),
        ("[models.a]\nstore = ['/s']\n", "[models.a] store: expected text, found ['/s']"),
        ("[models.a]\nstore = '/s'\ntrainer = 'here'\n", "[models.a] trainer: address 'here': expected HOST:PORT"),
        ("[models.a]\nstore = '/s'\ninputs = ['x:0']\n", "model a: expected inputs and outputs together"),
        ("[models.a]\nstore = '/s'\nbatching = 1\n", "[models.a] batching: expected true or false, found 1"),
        ("[models.a]\nstore = '/s'\nlabels = 1\n", "[models.a] labels: expected a table of versions by label"),
        ("[models.a]\nstore = '/s'\nlabels = { a = -1 }\n", "labels: expected the number of a version for a, found -1"),
        ("[models.a]\nconnect = ['b', 'b']\n", '[models.a] connect: expected two models, such as ["encoder", "head"]'),
        ("[models.a]\nconnect = ['b', 'c']\ninputs = {}\n", "[models.a] inputs: expected a table"),
        (
            "[models.a]\nconnect = ['b', 'c']\ninputs = { x = 'y' }\n[models.b]\nstore = '/s'\n",
            "model a: expected two models that have a store to connect, of b, found b and c",
        ),
        ("[models.a]\nconnect = ['b', 'c']\nresident = 3\n", "resident: expected one of connect, inputs, outputs"),
    ],
)
def test_a_mistake_is_one_line_that_says_where(text: str, problem: str, tmp_path: Path) -> None:
    path = config(tmp_path, text)
    with pytest.raises(SettingsError, match=re.escape(problem)) as raised:
        parse(["--config", str(path)])
    assert str(raised.value).startswith(f"--config {path}: ")
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"--config {tmp_path}/none: cannot be read: No such file"):
        parse(["--config", f"{tmp_path}/none"])
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        parse(["--config", str(tmp_path)])
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="expected TOML in UTF-8, found a mistake: "):
        parse(["--config", f"{tmp_path}/bytes"])
    (tmp_path / "large").write_bytes(b" " * (1 << 21))
    with pytest.raises(SettingsError, match="expected a file of at most 1048576 bytes, found a larger one"):
        parse(["--config", f"{tmp_path}/large"])


def test_what_a_file_says_of_models_is_not_said_beside_it(tmp_path: Path) -> None:
    path = config(tmp_path, '[models.a]\nstore = "/s"\n')
    problem = re.escape(f"--resident: expected in [models.NAME] of {path}, found beside --config")
    with pytest.raises(SettingsError, match=problem):
        parse(["--config", str(path), "--resident", "3"])
    with pytest.raises(SettingsError, match=r"or --config FILE\.toml, found both"):
        parse(["--config", str(path), "--model", "b=/s"])
