"""The program's settings and the file that names models: what may be said, and the one line for each mistake."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from inferencer.settings.settings import ConnectionSettings, ModelSettings, Settings, parse
from paramsync.errors import SettingsError
from tests.support.keys import keys
from tests.support.programs import ROOT, refused


def test_settings_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = parse(["--model", f"a={tmp_path}", "--model", "b=/not/there=yet"])
    models = (ModelSettings(name="a", store=tmp_path), ModelSettings(name="b", store=Path("/not/there=yet")))
    assert found == Settings(models=models, state=tmp_path / "state/paramsync/8502")
    assert (found.host, found.port, found.rest_port, found.control_port) == ("127.0.0.1", 8500, 8501, 8502)
    assert (found.poll_seconds, found.queue, found.message_bytes) == (5.0, 1024, 64 << 20)


def test_every_flag_of_a_model_is_said_of_each(tmp_path: Path) -> None:
    flags = ["--verify", "checksums", "--resident", "3", "--trainer", "127.0.0.1:8503"]
    ops = ["--allow-op", "ReadFile", "--allow-op", "Add>Ons"]
    for one in parse(["--model", "a=/s", "--model", "b=/t", *flags, *ops]).models:
        assert isinstance(one, ModelSettings)
        assert (one.verify, one.resident, one.trainer) == ("checksums", 3, "127.0.0.1:8503")
        assert one.allowed == ("ReadFile", "Add>Ons")


def test_keys_are_trusted_for_each_model_and_read_before_anything_starts(tmp_path: Path) -> None:
    one, two = keys(tmp_path, "one"), keys(tmp_path, "two")
    trust = ["--trust", str(one.public), "--trust", str(two.public)]
    for model in parse(["--model", "a=/s", "--model", "b=/t", *trust]).models:
        assert isinstance(model, ModelSettings)
        assert model.trust == (one.public, two.public)
    (tmp_path / "models.toml").write_text("[models.a]\nstore = '/s'\ntrust = ['two.pub']\n")
    (model,) = parse(["--config", str(tmp_path / "models.toml")]).models
    assert isinstance(model, ModelSettings)
    assert model.trust == (two.public,)
    with pytest.raises(SettingsError, match=r"--trust none\.pub: cannot be read: No such file or directory"):
        parse(["--model", "a=/s", "--trust", "none.pub"])
    for others in (["--inputs", "x:0", "--outputs", "y:0"], ["--graph", "/g.pb"]):
        with pytest.raises(SettingsError, match=r"model a: expected trust, or .*, which nobody can sign, found both"):
            parse(["--model", "a=/s", *trust, *others])


def test_each_model_may_have_a_trainer_of_its_own() -> None:
    models = [word for name in "abc" for word in ("--model", f"{name}=/{name}")]
    found = parse([*models, "--trainer", "c=h:3", "--trainer", "h:1", "--trainer", "a=[::1]:2"]).models
    assert [one.trainer for one in found if isinstance(one, ModelSettings)] == ["[::1]:2", "h:1", "h:3"]
    found = parse([*models, "--trainer", "b=h:2"]).models
    assert [one.trainer for one in found if isinstance(one, ModelSettings)] == [None, "h:2", None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["d=h:1"], "--trainer d=h:1: expected one of the models a, b, found 'd'"),
        (["a=h:1", "a=h:2"], "--trainer: expected one trainer for a, found h:1 and h:2"),
        (["h:1", "h:2"], "--trainer: expected one trainer for all models, found h:1 and h:2"),
        (["a=h"], "--trainer: address 'h': expected HOST:PORT"),
        (["=h:1"], "--trainer: expected a name"),
    ],
)
def test_a_trainer_of_a_model_that_is_not_there_or_has_one_is_refused(given: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        parse(["--model", "a=/s", "--model", "b=/t", *(word for one in given for word in ("--trainer", one))])


def test_where_any_port_will_do_pins_are_remembered_only_where_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # which its specification says to ignore
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse(["--model", "a=/s", "--control-port", "0"]).state is None
    assert parse(["--model", "a=/s", "--control-port", "0", "--state", "/k"]).state == Path("/k")
    assert parse(["--model", "a=/s", "--control-port", "9"]).state == tmp_path / ".local/state/paramsync/9"


def test_with_any_free_port_for_predictions_that_for_http_is_any_too() -> None:
    assert parse(["--model", "a=/s", "--port", "0"]).rest_port == 0
    assert parse(["--model", "a=/s", "--port", "0", "--rest-port", "9"]).rest_port == 9


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "expected --model NAME=STORE, repeated as needed, or --config FILE.toml, found neither"),
        (
            ["--model", "digits"],
            "--model: expected NAME=STORE, such as digits=/var/lib/paramsync/digits, found 'digits'",
        ),
        (["--model", "two words=store"], "expected NAME=STORE"),
        (["--model", "a=x", "--model", "a=y"], "model a: expected each name once, found it 2 times"),
        (
            ["--model", "a=x", "--model", "b=y", "--inputs", "x:0", "--outputs", "y:0"],
            "--inputs, --outputs and --graph are of one graph: expected one --model with them, found 2",
        ),
        (["--model", "a=x", "--inputs", "x:0,", "--outputs", "y:0"], "expected names of tensors"),
        (["--model", "n" * 201 + "=x"], "expected a name of at most 200 bytes, as a URL has them, found 201 in"),
        (["--model", "a=x", "--port", "65536"], "expected a port from 0 to 65535, found '65536'"),
        (["--model", "a=x", "--port", "9000", "--control-port", "9000"], "expected two different ports, found 9000"),
        (["--model", "a=x", "--host", ""], "--host: expected an address to listen on, such as 127.0.0.1, found ''"),
        (["--model", "a=x", "--poll-seconds", "0"], "expected seconds above 0, found '0'"),
        (["--model", "a=x", "--verify", "nothing"], "--verify: expected auto or checksums, found 'nothing'"),
        (["--model", "a=x", "--resident", "0"], "--resident: expected a whole number of at least 1, found '0'"),
        (["--model", "a=x", "--max-message-mb", "2048"], "expected a whole number of at most 2047, found '2048'"),
        (["--model", "a=x", "--trainer", "here"], "--trainer: address 'here': expected HOST:PORT"),
        (["--model", "a=x", "--allow-op", "ReadFile,WriteFile"], "expected the name of one op, such as ReadFile"),
        (["--model", "a=/n\udcff"], "expected arguments in UTF-8, found 'a=/n\\udcff'"),
    ],
)
def test_wrong_settings_say_what_was_expected(arguments: list[str], text: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(text)):
        parse(arguments)


def test_help_fits_a_screen_of_80_columns_and_shows_how_to_begin() -> None:
    environment = {**os.environ, "COLUMNS": "80"}
    command = [sys.executable, "-m", "inferencer", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert max(map(len, said.splitlines())) <= 80
    assert "paramsync serve --model digits=/dev/shm/digits\n" in said
    assert "paramsync serve --config models.toml" in said


def test_a_taken_port_is_one_line_and_exit_code_2_before_tensorflow_is_imported(tmp_path: Path) -> None:
    program = "import sys; from inferencer.__main__ import main; print(main(sys.argv[1:]), 'tensorflow' in sys.modules)"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["--model", f"a={tmp_path}", "--port", port]
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    said = f"paramsync serve: port {port} of 127.0.0.1 is taken; choose another with --port (0: any free)\n"
    assert done.stderr.endswith(said)


def test_signals_are_taken_over_before_anything_that_takes_time_is_imported() -> None:
    program = "import sys, inferencer.__main__; print({'argparse', 'asyncio', 'logging', 'grpc'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_an_unreadable_store_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0)
    said = refused("inferencer", "--model", f"a={store}")
    assert said.startswith(f"paramsync serve: store {store}: cannot be read: permission denied")


def test_tokens_are_of_a_file_or_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text("a-token-of-many-letters")
    config = tmp_path / "models.toml"
    config.write_text("[server]\ntoken_file = 'tokens'\nauth_reads = true\n[models.a]\nstore = '/s'\n")
    for given in (["--model", "a=/s", "--token-file", str(file), "--auth-reads"], ["--config", str(config)]):
        found = parse(given)
        assert found.tokens is not None
        assert (found.tokens.first(), found.auth_reads) == ("a-token-of-many-letters", True)
        assert "a-token-of-many-letters" not in repr(found)
    assert parse(["--model", "a=/s"]).tokens is None
    with pytest.raises(SettingsError, match="--auth-reads: expected --token-file FILE or --tls-client-ca FILE with it"):
        parse(["--model", "a=/s", "--auth-reads"])
    monkeypatch.setenv("PARAMSYNC_TOKEN", "short")
    with pytest.raises(SettingsError, match="PARAMSYNC_TOKEN, line 1: expected 16 characters or more, found 5"):
        parse(["--model", "a=/s"])


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
