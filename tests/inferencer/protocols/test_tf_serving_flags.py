"""TensorFlow Serving's flags and files: what each becomes, and what is said of bad ones."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from inferencer.program.tf_serving.flags import CHANGE_NOTHING, REFUSED, parse
from inferencer.protocols.tfs.config_file import ConfigFile
from inferencer.settings.settings import ModelSettings, Settings, TfServing
from paramsync.errors import RequestError, SettingsError
from tests.support.keys import keys

BASE = "--model_base_path=/models/m"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def theirs(*arguments: str) -> TfServing:
    found = parse([BASE, *arguments]).tf_serving
    assert found is not None
    return found


def test_defaults_are_those_of_tensorflow_serving() -> None:
    assert parse([BASE]) == Settings(
        models=(ModelSettings(name="default", store=Path("/models/m")),),
        host="0.0.0.0",
        port=8500,
        rest_port=0,
        control_host="127.0.0.1",
        control_port=0,
        poll_seconds=1.0,
        tf_serving=TfServing(http=False),
    )


def test_ports_and_the_socket() -> None:
    found = parse([BASE, "--port=9000", "--rest_api_port", "9001", "--grpc_socket_path=/run/s", "--control_port=9002"])
    assert (found.port, found.rest_port, found.control_port) == (9000, 9001, 9002)
    assert found.tf_serving == TfServing(socket=Path("/run/s"))
    assert theirs("--port=0", "--grpc_socket_path=/run/s").port is False
    with pytest.raises(SettingsError, match="expected --port or --grpc_socket_path, found neither"):
        parse([BASE, "--port=0"])
    with pytest.raises(SettingsError, match="found 8500 for both --port and --rest_api_port"):
        parse([BASE, "--rest_api_port=8500"])


def test_errors_of_tls_name_the_flags_as_they_are_here() -> None:
    with pytest.raises(SettingsError, match="expected --tls_cert FILE and --tls_key FILE together"):
        parse([BASE, "--tls_cert=/c"])


def test_keys_are_trusted_for_every_model_and_those_that_come_later(tmp_path: Path) -> None:
    key = keys(tmp_path).public
    found = parse([BASE, f"--trust={key}"])
    assert found.models == (ModelSettings(name="default", store=Path("/models/m"), trust=(key,)),)
    assert theirs(f"--trust={key}").trust == (key,)
    config = written(tmp_path / "models.config", 'model_config_list { config { name: "a" base_path: "/a" } }')
    [model] = parse([f"--model_config_file={config}", f"--trust={key}", "--trust", str(key)]).models
    assert isinstance(model, ModelSettings)
    assert model.trust == (key, key)
    empty = written(tmp_path / "empty.config", "model_config_list { }")
    with pytest.raises(SettingsError, match=f"{tmp_path}/none"):
        parse([f"--model_config_file={empty}", f"--trust={tmp_path}/none"])


def test_models_of_a_file(tmp_path: Path) -> None:
    config = written(
        tmp_path / "models.config",
        'model_config_list { config { name: "a" base_path: "/a" model_platform: "tensorflow"'
        ' model_version_policy { latest { num_versions: 3 } } } config { name: "b" base_path: "/b" } }',
    )
    found = parse([f"--model_config_file={config}", "--model_config_file_poll_wait_seconds=2", "--model_name=ignored"])
    assert found.models == (
        ModelSettings(name="a", store=Path("/a"), resident=3),
        ModelSettings(name="b", store=Path("/b")),
    )
    assert found.tf_serving == TfServing(http=False, config_file=config, config_poll_seconds=2.0)


def test_batching_parameters_count_where_batching_is_enabled(tmp_path: Path) -> None:
    file = written(tmp_path / "batching", "max_batch_size { value: 128 } batch_timeout_micros { value: 0 }")
    of_file = f"--batching_parameters_file={file}"
    assert parse([BASE, "--enable_batching", of_file]).batch_rows == 128
    assert parse([BASE, "--enable_batching=false", of_file]).batch_rows == 256


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("prometheus_config { enable: true }", "/monitoring/prometheus/metrics"),
        ('prometheus_config { enable: true path: "/m" }', "/m"),
        ('prometheus_config { path: "/m" }', None),
        ("", None),
    ],
)
def test_where_metrics_are(tmp_path: Path, text: str, path: str | None) -> None:
    assert theirs(f"--monitoring_config_file={written(tmp_path / 'monitoring', text)}").metrics_path == path


def test_arguments_of_the_channel() -> None:
    found = parse([BASE, "--grpc_channel_arguments=grpc.max_connection_age_ms=2000,grpc.lb_policy_name=grpclb"])
    assert found.tf_serving is not None
    assert found.tf_serving.connection_seconds == 2.0
    [told] = found.tf_serving.changing_nothing
    assert told.startswith("--grpc_channel_arguments grpc.lb_policy_name (")
    assert parse([BASE, f"--grpc_channel_arguments=grpc.max_receive_message_length={9 << 20}"]).message_bytes == 9 << 20
    assert parse([BASE, "--grpc_channel_arguments=grpc.max_send_message_length=-1"]).message_bytes == 2047 << 20


@pytest.mark.parametrize("flag", CHANGE_NOTHING)
def test_what_changes_nothing_is_taken_and_told(flag: str) -> None:
    assert [one.partition(" ")[0] for one in theirs(f"--{flag}=1").changing_nothing] == [f"--{flag}"]


@pytest.mark.parametrize("flag", REFUSED)
def test_what_somebody_relies_on_is_refused(flag: str) -> None:
    with pytest.raises(SettingsError, match=f"--{flag} is not supported: .*leave the flag out"):
        parse([BASE, f"--{flag}=/x"])
    assert parse([BASE, f"--{flag}="]) == parse([BASE])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prot=1"], "found '--prot'; similar: --port"),
        (["--rest-api-port=1"], "similar: --rest_api_port"),
        (["--model_base_pth", "/m"], "similar: --model_base_path"),
        ([], "expected --model_base_path or --model_config_file, found neither"),
        (["--model_base_path=gs://bucket/m"], "expected a directory of this machine, found gs://: mount it"),
        ([BASE, "--saved_model_tags=serve,gpu"], "expected serve, found 'serve,gpu'"),
        ([BASE, "--file_system_poll_wait_seconds=0"], "name it in a model_version_policy"),
        ([BASE, "--enable_batching=maybe"], "expected true or false, found 'maybe'"),
        ([BASE, "--model_name=a/b"], "expected a name of letters"),
        ([BASE, "--monitoring_config_file=/not/there"], "--monitoring_config_file /not/there: cannot be read"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as refused:
        parse(arguments)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_none_is_named_as_tensorflow_serving_names_it(tmp_path: Path) -> None:
    config = written(tmp_path / "bad", "improperly formatted file")
    with pytest.raises(SettingsError, match=r"Error parsing text-format tensorflow\.serving\.ModelServerConfig: 1:1"):
        parse([f"--model_config_file={config}"])


class Applied:
    """What was asked for, and what is said to it."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []
        self.error: Exception | None = None

    async def apply(self, config: Any, *, seconds: float | None) -> None:
        self.names.append([one.name for one in config.model_config_list.config])
        if self.error is not None:
            raise self.error


def text(*names: str) -> str:
    return (
        "model_config_list { " + " ".join(f'config {{ name: "{name}" base_path: "/{name}" }}' for name in names) + " }"
    )


def looks(file: ConfigFile, *times: float) -> None:
    async def look() -> None:
        for now in times:
            await file.run_once(now)

    asyncio.run(look())


def test_what_is_the_same_is_applied_once(tmp_path: Path) -> None:
    path, applied = tmp_path / "models", Applied()
    file = ConfigFile(path, applied.apply)
    path.write_text(text("a"))
    looks(file, 1.0, 2.0, 3.0)
    path.write_text(f"# a remark\n{text('a')}\n")
    looks(file, 4.0)
    path.write_text(text("a", "b"))
    looks(file, 5.0, 6.0)
    assert applied.names == [["a"], ["a", "b"]]


def test_what_fails_is_tried_again_less_and_less_often_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, applied = tmp_path / "models", Applied()
    file = ConfigFile(path, applied.apply)
    path.write_text(text("a"))
    applied.error = RequestError("a cannot serve")
    with caplog.at_level(logging.ERROR):
        looks(file, *range(100, 700))
    assert 20 < len(applied.names) < 40
    assert [one.getMessage() for one in caplog.records] == [
        f"--model_config_file {path}: a cannot serve; what was served before goes on"
    ]
    applied.error = None
    path.write_text(text("b"))
    looks(file, 700.0)
    assert applied.names[-1] == ["b"]


def test_a_file_whose_pins_take_effect_later_is_applied_once_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, applied = tmp_path / "models", Applied()
    file = ConfigFile(path, applied.apply)
    path.write_text(text("a"))
    applied.error = TimeoutError("the change is accepted, and takes effect for a once the store answers")
    looks(file, *range(100, 200))
    assert applied.names == [["a"]]
    assert [one.getMessage() for one in caplog.records] == [f"--model_config_file {path}: {applied.error}"]


def test_a_file_that_is_gone_for_a_moment_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, applied = tmp_path / "models", Applied()
    file = ConfigFile(path, applied.apply)
    path.write_text(text("a"))
    looks(file, 1.0)
    path.unlink()
    with caplog.at_level(logging.ERROR):
        looks(file, 2.0, 3.0)
    assert len(caplog.records) == 1
    path.write_text(text("a"))
    looks(file, 4.0)
    assert applied.names == [["a"]]
