"""TensorFlow Serving's flags: their meaning here, flags without effect, and refused flags."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from tensorflow_serving.config import model_server_config_pb2

from paramsync.errors import SettingsError
from paramsync.program.flags import TOKEN_FILE_HELP, Parser, check_text
from paramsync.program.process import release
from paramsync.rpc import settings as credentials
from paramsync.rpc.addresses import PREDICTIONS_PORT, check_different, read_port
from paramsync.rpc.tls import tls_files
from paramsync.store.signing import TrustedKeys
from paramsync.v1 import tf_serving_pb2

from ...protocols.tfs.config_file import read
from ...settings import readers
from ...settings.flags import read_poll, read_rows
from ...settings.settings import ModelSettings, Settings, TfServing, check_access, check_models

_EVERYWHERE = "0.0.0.0"
_CONTROL_HOST = "127.0.0.1"
_METRICS_PATH = "/monitoring/prometheus/metrics"
_MESSAGES = ("grpc.max_receive_message_length", "grpc.max_send_message_length")
_AGE = "grpc.max_connection_age_ms"
Arguments: TypeAlias = "tuple[tuple[str, int | str], ...]"
_MOST_BYTES = 2047 << 20
_CREDENTIALS = credentials.OptionNames(
    f"--token_file FILE (or {credentials.TOKEN})", "--tls_cert", "--tls_key", "--tls_client_ca"
)

CHANGE_NOTHING: Mapping[str, str] = {
    "rest_api_num_threads": "the event loop answers",
    "rest_api_timeout_in_ms": "an answer by HTTP may take 30 seconds",
    "rest_api_enable_cors_support": "no answer has CORS headers; a proxy may add them",
    "enable_per_model_batching_parameters": "requests that wait together are batched by themselves",
    "num_load_threads": "each model has a thread of its own",
    "num_unload_threads": "each model has a thread of its own",
    "max_num_load_retries": "a version that cannot be used is tried again once it is written again",
    "load_retry_interval_micros": "a version that cannot be used is tried again once it is written again",
    "flush_filesystem_caches": "files stay in the page cache for as long as the kernel pleases",
    "tensorflow_session_parallelism": "TensorFlow decides",
    "tensorflow_session_config_file": "TensorFlow decides",
    "tensorflow_intra_op_parallelism": "TensorFlow decides",
    "tensorflow_inter_op_parallelism": "TensorFlow decides",
    "per_process_gpu_memory_fraction": "it serves on the CPU",
    "grpc_max_threads": "the event loop answers",
    "enable_model_warmup": "each new graph is called once before it serves, with inputs that are made up",
    "num_request_iterations_for_warmup": "each new graph is called once before it serves, with inputs that are made up",
    "remove_unused_fields_from_bundle_metagraph": "nothing unused is kept",
    "prefer_tflite_model": "models of TensorFlow Lite are not served",
    "num_tflite_pools": "models of TensorFlow Lite are not served",
    "num_tflite_interpreters_per_pool": "models of TensorFlow Lite are not served",
    "enable_signature_method_name_check": "the tensors of a signature decide, not its method name",
    "xla_cpu_compilation_enabled": "graphs are computed as they are written",
    "xla_gpu_compilation_enabled": "graphs are computed as they are written",
    "enable_profiler": "there is no profiler",
    "thread_pool_factory_config_file": "TensorFlow decides",
    "mixed_precision": "graphs are computed as they are written",
    "skip_initialize_tpu": "it serves on the CPU",
    "enable_grpc_healthcheck_service": "there is one always",
    "enable_serialization_as_tensor_content": "answers are in typed fields",
    "allow_version_labels_for_unavailable_models": "a label may be given to a version that is yet to come",
}
"""Flags without an effect, each with the reason. They are accepted, and logged at the start."""

REFUSED: Mapping[str, str] = {
    "ssl_config_file": "write its texts to files for --tls_cert, --tls_key and --tls_client_ca, and leave the flag out",
    "use_alts_credentials": "it listens without ALTS; put a proxy in front, and leave the flag out",
    "platform_config_file": "the one platform is tensorflow; leave the flag out",
}
"""Flags that are refused, because their users rely on them; each with an alternative."""


def parse(arguments: Sequence[str]) -> Settings:
    """Read the command line. Raises SettingsError, or StoreError for a path that cannot be a store."""
    check_text(arguments)
    grammar = _parser()
    given, unknown = grammar.parse_known_args(arguments)
    if unknown:
        raise SettingsError(_unknown(unknown[0], grammar))
    flags = {name: value for name, value in vars(given).items() if value not in ("", None)}
    for name, instead in REFUSED.items():
        if flags.pop(name, False):
            raise SettingsError(f"--{name} is not supported: {instead}")
    return _settings(flags)


def _settings(flags: Mapping[str, Any]) -> Settings:
    config_file = flags.get("model_config_file")
    poll = flags.get("model_config_file_poll_wait_seconds", 0.0)
    port, rest_port, socket = flags["port"], flags["rest_api_port"], flags.get("grpc_socket_path")
    if not port and socket is None:
        raise SettingsError("expected --port or --grpc_socket_path, found neither")
    arguments, trust = flags.get("grpc_channel_arguments", ()), tuple(flags["trust"])
    if trust:
        TrustedKeys(trust)  # read even without a model: models that are added later use the keys
    settings = Settings(
        models=_models(flags, config_file, trust),
        host=flags["host"],
        port=port,
        rest_port=rest_port,
        control_host=_CONTROL_HOST,
        control_port=flags["control_port"],
        reload_roots=tuple(flags["reload_root"]),
        tokens=credentials.tokens(flags.get("token_file")),
        auth_reads=flags.get("auth_reads", False),
        tls=tls_files(flags.get("tls_cert"), flags.get("tls_key"), flags.get("tls_client_ca"), options=_CREDENTIALS),
        poll_seconds=flags.get("file_system_poll_wait_seconds", 1.0),
        tf_serving=TfServing(
            port=bool(port),
            http=bool(rest_port),
            socket=socket,
            connection_seconds=_connection_seconds(arguments),
            metrics_path=_metrics_path(flags.get("monitoring_config_file")),
            config_file=config_file,
            config_poll_seconds=poll or None,
            trust=trust,
            changing_nothing=(*_changing_nothing(flags), *_arguments_changing_nothing(arguments)),
        ),
        **_batching(flags),
        **_message_bytes(arguments),
    )
    check_different({"--port": port, "--rest_api_port": rest_port, "--control_port": settings.control_port})
    check_models(settings.models)
    check_access(settings)
    return settings


def _models(flags: Mapping[str, Any], config_file: Path | None, trust: tuple[Path, ...]) -> tuple[ModelSettings, ...]:
    if config_file is None:
        if "model_base_path" not in flags:
            raise SettingsError("expected --model_base_path or --model_config_file, found neither")
        return (ModelSettings(name=flags["model_name"], store=flags["model_base_path"], trust=trust),)
    config = read(config_file, model_server_config_pb2.ModelServerConfig, "--model_config_file")
    try:
        return tuple(_model(model, trust) for model in config.model_config_list.config)
    except argparse.ArgumentTypeError as error:
        raise SettingsError(f"--model_config_file {config_file}: {error}") from error


def _model(config: Any, trust: tuple[Path, ...]) -> ModelSettings:
    """Read a model's name, store, and number of versions in memory.

    The model's pinned version and labels are applied later, as by HandleReloadConfigRequest.
    """
    model = ModelSettings(name=readers.name(config.name), store=_base_path(config.base_path), trust=trust)
    count = config.model_version_policy.latest.num_versions
    return replace(model, resident=count) if 0 < count <= 1000 else model


def _metrics_path(path: Path | None) -> str | None:
    if path is None:
        return None
    config = read(path, tf_serving_pb2.MonitoringConfig, "--monitoring_config_file").prometheus_config
    return (config.path or _METRICS_PATH) if config.enable else None


def _batching(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Read max_batch_size: how many rows one call may have.

    The file's other parameters have no effect, because batches form while requests wait.
    """
    path = flags.get("batching_parameters_file")
    if path is None or not flags.get("enable_batching", False):
        return {}
    parameters = read(path, tf_serving_pb2.BatchingParameters, "--batching_parameters_file")
    if not parameters.HasField("max_batch_size"):
        return {}
    try:
        return {"batch_rows": read_rows(str(parameters.max_batch_size.value))}
    except argparse.ArgumentTypeError as error:
        raise SettingsError(f"--batching_parameters_file {path}: max_batch_size: {error}") from error


def _message_bytes(arguments: Arguments) -> dict[str, Any]:
    """Read the size limit for messages: the larger of gRPC's limits for requests and for answers. A negative limit
    means 2047 MiB, the most that there can be."""
    limits = [value for name, value in arguments if name in _MESSAGES and isinstance(value, int)]
    if not limits:
        return {}
    most = _MOST_BYTES if min(limits) < 0 else min(max(limits), _MOST_BYTES)
    return {"message_bytes": max(1, most)}


# The flags -------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="paramsync serve --tf-serving",
        description="Serves predictions as tensorflow_model_server does, with its flags. See docs/tf-serving.md.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--port", type=read_port, default=PREDICTIONS_PORT, metavar="N", help="for gRPC (default: 8500; 0: none)")
    add("--grpc_socket_path", type=readers.path, metavar="PATH", help="a UNIX socket for gRPC, beside or instead")
    add("--rest_api_port", type=read_port, default=0, metavar="N", help="for HTTP (default: 0: none)")
    add("--model_name", type=readers.name, default="default", metavar="NAME", help="(default: default)")
    add("--model_base_path", type=_base_path, metavar="DIR", help="of numbered SavedModels, or of checkpoints")
    add("--model_config_file", type=_file, metavar="FILE", help="a ModelServerConfig as text, instead of a base path")
    add("--model_config_file_poll_wait_seconds", type=_config_poll, metavar="S", help="how often to look for a change"
        " of it (default: 0: never)")  # fmt: skip
    add("--file_system_poll_wait_seconds", type=_poll, metavar="S", help="how often to look for versions where the file"
        " system does not say that there are new ones (default: 1)")  # fmt: skip
    add("--enable_batching", **_BOOL, help="requests that wait together are batched with and without it")
    add("--batching_parameters_file", type=_file, metavar="FILE", help="its max_batch_size, with --enable_batching")
    add("--monitoring_config_file", type=_file, metavar="FILE", help="where the metrics are, with their names there")
    add("--grpc_channel_arguments", type=_channel_arguments, metavar="NAME=VALUE,...", help="lengths of messages, and"
        " ages of connections")  # fmt: skip
    add("--saved_model_tags", type=_tags, metavar="serve", help="no others can be had")
    add("--version", action="version", version=_version(), help="print versions and end")
    own = parser.add_argument_group("not TensorFlow Serving's").add_argument
    own("--host", type=readers.host, default=_EVERYWHERE, metavar="ADDRESS", help=f"(default: {_EVERYWHERE})")
    own("--control_port", type=read_port, default=0, metavar="N", help="of paramsync status, pin and so on, on"
        f" {_CONTROL_HOST} (default: 0: any free one, which is logged)")  # fmt: skip
    roots = "callers may have models below it served by HandleReloadConfigRequest; may be repeated"
    own("--reload_root", action="append", type=readers.path, default=[], metavar="DIR", help=roots)
    own("--trust", action="append", type=readers.path, default=[], metavar="KEYFILE", help="serve nothing but versions"
        " that one of the public keys in this file signed; may be repeated")  # fmt: skip
    own("--token_file", type=_file, metavar="FILE", help=TOKEN_FILE_HELP)
    own("--tls_cert", type=_file, metavar="FILE", help="the certificate of this server, and those it is signed by")
    own("--tls_key", type=_file, metavar="FILE", help="its key; with both every port speaks TLS")
    own("--tls_client_ca", type=_file, metavar="FILE", help="who signs the certificates that callers show")
    own("--auth_reads", **_BOOL, help="calls that read, predictions among them, need a token too")
    ignored = parser.add_argument_group("taken, and named at the start, as they change nothing here").add_argument
    for name in CHANGE_NOTHING:
        ignored(f"--{name}", nargs="?", const="true", metavar="X", help=CHANGE_NOTHING[name])
    refused = parser.add_argument_group("refused").add_argument
    for name in REFUSED:
        refused(f"--{name}", nargs="?", const="true", type=_set, metavar="X", help=REFUSED[name])
    return parser


def _unknown(argument: str, parser: argparse.ArgumentParser) -> str:
    flag = argument.partition("=")[0]
    known = sorted(set(re.findall(r"--\w+", parser.format_help())))
    similar = difflib.get_close_matches(flag.replace("-", "_").replace("__", "--", 1), known, n=3)
    return f"expected a flag of tensorflow_model_server, found {flag!r}; similar: {', '.join(similar) or 'none'}"


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"expected true or false, found {text!r}")
    return text.lower() in ("true", "1")


_BOOL: dict[str, Any] = {"nargs": "?", "const": True, "type": _bool, "metavar": "BOOL"}


def _set(text: str) -> bool:
    return text.lower() not in ("", "false", "0")


def _file(text: str) -> Path | None:
    return readers.path(text) if text else None


def _base_path(text: str) -> Path:
    scheme = text.partition("://")[0] if "://" in text else ""
    if scheme:
        raise argparse.ArgumentTypeError(f"expected a directory of this machine, found {scheme}://: mount it")
    return readers.path(text)


def _poll(text: str) -> float:
    try:
        return read_poll(text)
    except argparse.ArgumentTypeError as error:
        instead = "to stay at one version name it in a model_version_policy"
        raise argparse.ArgumentTypeError(f"{error}; new versions are always followed, {instead}") from error


def _config_poll(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else read_poll(text)


def _tags(text: str) -> str:
    if text not in ("", "serve"):
        raise argparse.ArgumentTypeError(f"expected serve, found {text!r}")
    return text


def _channel_arguments(text: str) -> Arguments:
    arguments: list[tuple[str, int | str]] = []
    for argument in filter(None, text.split(",")):
        name, equals, value = argument.partition("=")
        if not (name and equals):
            raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {argument!r}")
        arguments.append((name, int(value) if value.lstrip("-").isdecimal() else value))
    return tuple(arguments)


def _connection_seconds(arguments: Arguments) -> float | None:
    age = dict(arguments).get(_AGE)
    return age / 1000 if isinstance(age, int) and age > 0 else None


def _changing_nothing(flags: Iterable[str]) -> Iterator[str]:
    return (f"--{name} ({CHANGE_NOTHING[name]})" for name in flags if name in CHANGE_NOTHING)


def _arguments_changing_nothing(arguments: Arguments) -> Iterator[str]:
    names = (name for name, _ in arguments if name not in (*_MESSAGES, _AGE))
    return (
        f"--grpc_channel_arguments {name} (the server is not gRPC's own, and has limits of its own)" for name in names
    )


def _version() -> str:
    return f"TensorFlow ModelServer: paramsync {release()}\nTensorFlow Library: {release('tensorflow')}"
