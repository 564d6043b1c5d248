"""The settings of the server, read and checked before TensorFlow is imported."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from paramsync.errors import SettingsError, StoreError
from paramsync.host.processes import processors
from paramsync.program.flags import check_text
from paramsync.remote.child import cache_of
from paramsync.remote.in_order import buckets
from paramsync.rpc import settings as credentials
from paramsync.rpc.addresses import CONTROL_PORT, HOST, PREDICTIONS_PORT, REST_PORT, check_different
from paramsync.rpc.tls import ClientTls, TlsFiles, tls_files
from paramsync.rpc.tokens import Tokens
from paramsync.store.signing import TrustedKeys

from . import flags, models_file

if TYPE_CHECKING:
    from paramsync.rpc.client import Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """A model and the store that it follows.

    `inputs` and `outputs` name tensors, for checkpoints of TensorFlow's Saver; `graph` is the path of a graph, for
    checkpoints without a graph. `labels` are set at the start, but a remembered label wins unless the settings have
    changed since. A fresh sync asks `trainer` to publish. `latest` is how many of the newest versions stay in memory.
    If it is None, the versions that served last stay, `resident` of them. If `trust` names files of public keys, only
    versions signed with one of these keys are served. With `serve_damaged`, a damaged version keeps answering if there
    is no other version.
    """

    name: str
    store: Path
    address: str = ""
    """The bucket that the store is a local copy of."""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    graph: Path | None = None
    verify: Literal["auto", "checksums"] = "auto"
    serve_damaged: bool = False
    resident: int = 2
    latest: int | None = None
    allowed: tuple[str, ...] = ()
    trust: tuple[Path, ...] = ()
    trainer: str | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    batching: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Two models of the same server joined into one: `inputs` maps inputs of the second to outputs of the first."""

    name: str
    first: str
    second: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TfServing:
    """Settings that only TensorFlow Serving's flags have. As in TensorFlow Serving, the ports for predictions open only
    after the first look at the store of every model."""

    port: bool = True
    """Listen for gRPC on a port."""
    http: bool = True
    """Listen for HTTP."""
    socket: Path | None = None
    """A UNIX socket for gRPC, in addition to the port or instead of it."""
    connection_seconds: float | None = None
    """The age at which the caller of a gRPC connection is told to open another connection."""
    metrics_path: str | None = None
    """An additional path of the metrics. If given, metrics have TensorFlow Serving's names, too."""
    config_file: Path | None = None
    """A ModelServerConfig as text, applied at the start and after each change."""
    config_poll_seconds: float | None = None
    """Seconds between two checks of the file for a change. If None, there are no checks."""
    trust: tuple[Path, ...] = ()
    """Files of public keys, also for models that are added later."""
    changing_nothing: tuple[str, ...] = ()
    """Flags that have no effect here, each with the reason; they are logged at the start."""


AnySettings: TypeAlias = "ModelSettings | ConnectionSettings"


def default_workers() -> int:
    """Return one worker for each processor, up to MOST_WORKERS."""
    return min(flags.MOST_WORKERS, processors())


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one run. Port 0 means any free port. Without `state`, pins end with the process.

    A caller may ask for any store below `reload_roots` to be served. Without roots, a caller may ask for any store if
    the server listens on loopback, and for none otherwise.
    """

    models: tuple[AnySettings, ...]
    host: str = HOST
    port: int = PREDICTIONS_PORT
    rest_port: int = REST_PORT
    control_host: str | None = None
    """The host of the control port. If None, it is the host of the other ports."""
    control_port: int = CONTROL_PORT
    poll_seconds: float = 5.0
    cache: Path | None = None
    """The folder of local copies of stores in buckets. If None, the copies are in memory."""
    state: Path | None = None
    reload_roots: tuple[Path, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    """Names allowed in the header Host of HTTP requests, in addition to localhost and loopback addresses. Only a server
    on a loopback address that takes no tokens and no client certificates checks the header."""
    tokens: Tokens | None = None
    """A caller that changes something needs one of these tokens, or a certificate if `tls` has a client authority."""
    auth_reads: bool = False
    """Whether a caller that only reads needs a token or a certificate, too."""
    tls: TlsFiles | None = None
    """The server's certificate and key. If None, connections are not encrypted."""
    trainer_tls_ca: Path | None = None
    """The authority that signs the certificates of trainers and peers. If None, they are called without TLS."""
    peers: tuple[str, ...] = ()
    """Control ports of the servers that the page shows: HOST:PORT, or dns:///NAME:PORT for all addresses of a name."""
    workers: int = field(default_factory=default_workers)
    """The number of processes that answer, apart from the one that follows the stores."""
    queue: int = 1024
    batch_rows: int = 256
    message_bytes: int = 64 << 20
    grpc_server: str = "own"
    """The server for predictions by gRPC: own or grpcio."""
    log_format: str = "text"
    tf_serving: TfServing | None = None


_OF_MODELS = (*flags.OF_MODELS, flags.TRAINER)


class Ports(NamedTuple):
    """The ports on which a started server listens; 0 where it does not listen."""

    predictions: int
    rest: int
    control: int


def parse(arguments: Sequence[str]) -> Settings:
    """Read the command line. Raises SettingsError, or StoreError for a path that cannot be a store."""
    check_text(arguments)
    flags_given = vars(flags.parser().parse_args(arguments))
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in flags_given.items()
    }
    config, models = given.pop("config", None), given.pop("model", None)
    of_models = {option: given.pop(option.field) for option in _OF_MODELS if option.field in given}
    if (config is None) == (models is None):
        instead = "neither" if config is None else "both"
        raise SettingsError(f"expected --model NAME=STORE, repeated as needed, or --config FILE.toml, found {instead}")
    if config is not None:
        for option in of_models:
            raise SettingsError(f"{option.flag}: expected in [models.NAME] of {config}, found beside --config")
        of_server, by_model = models_file.read(config)
        given = {**of_server, **given}  # flags override the file
        served = tuple(_settings_of_model(name, values, given.get("cache")) for name, values in by_model.items())
        try:
            check_models(served)
        except (SettingsError, StoreError) as error:
            raise SettingsError(f"--config {config}: {error}") from error
    else:
        trainers = _trainers(of_models.pop(flags.TRAINER, ()), [name for name, _ in models])
        values = {option.field: value for option, value in of_models.items()}
        served = tuple(
            ModelSettings(
                name=name, trainer=trainers.get(name, trainers.get(None)), **_place(store, given.get("cache")), **values
            )
            for name, store in models
        )
        if values.keys() & {"inputs", "outputs", "graph"} and len(served) > 1:
            raise SettingsError(
                "--inputs, --outputs and --graph are of one graph: expected one --model with them,"
                f" found {len(served)}; with --config, each model has its own"
            )
        check_models(served)
    if given.get("port") == 0:
        given.setdefault("rest_port", 0)
    tokens = credentials.tokens(given.pop("token_file", None))
    tls = tls_files(*(given.pop(name, None) for name in ("tls_cert", "tls_key", "tls_client_ca")))
    settings = Settings(models=served, **given, tokens=tokens, tls=tls)
    check_access(settings)
    check_different(ports(settings))
    return settings if settings.state else dataclasses.replace(settings, state=_state(settings.control_port))


def _place(store: Path | str, cache: Path | None) -> dict[str, Any]:
    """Return the fields of a model with this store. Raises SettingsError for an address that cannot be used."""
    if isinstance(store, Path):
        return {"store": store}
    buckets(store)
    return {"store": cache_of(store, cache), "address": store}


def check_access(settings: Settings) -> None:
    """Raise SettingsError if no caller could read anything, or if trainers could not be called."""
    if settings.auth_reads and settings.tokens is None and (settings.tls is None or settings.tls.client_ca is None):
        raise SettingsError("--auth-reads: expected --token-file FILE or --tls-client-ca FILE with it, found neither")
    trainer_tls(settings)


def trainer_tls(settings: Settings) -> ClientTls | None:
    """Return TLS for calls to trainers, with our own certificate if there is one. Raises SettingsError."""
    if settings.trainer_tls_ca is None:
        return None
    shown = () if settings.tls is None else (settings.tls.certificate, settings.tls.key)
    return ClientTls(settings.trainer_tls_ca, *shown, option="--trainer-tls-ca")


def client_credentials(settings: Settings) -> Credentials:
    """Return the token and TLS for calls to trainers and peers. Raises SettingsError."""
    from paramsync.rpc.client import Credentials  # here, because gRPC reads the environment when it is imported

    token = None if settings.tokens is None else settings.tokens.first()
    return Credentials(token=token, tls=trainer_tls(settings))


def ports(settings: Settings) -> dict[str, int]:
    """Return the ports by option."""
    return {"--port": settings.port, "--rest-port": settings.rest_port, "--control-port": settings.control_port}


def check_models(models: Collection[AnySettings], *, known: Collection[AnySettings] = ()) -> None:
    """Check that one server can serve these models. Raises SettingsError, StoreError.

    Stores of `known` models are not looked at, because a store may be on a file system that hangs.
    """
    stores = {model.name: model for model in models if isinstance(model, ModelSettings)}
    names = [model.name for model in models]
    for model in models:
        if names.count(model.name) > 1:
            raise SettingsError(
                f"model {model.name}: expected each name once, found it {names.count(model.name)} times"
            )
        if isinstance(model, ModelSettings):
            if model not in known:
                _check_model(model)
        elif model.first == model.second or not {model.first, model.second} <= {*stores}:
            raise SettingsError(
                f"model {model.name}: expected two models that have a store to connect, of"
                f" {', '.join(stores) or 'none'}, found {model.first} and {model.second}"
            )


def _check_model(model: ModelSettings) -> None:
    if bool(model.inputs) != bool(model.outputs):
        raise SettingsError(f"model {model.name}: expected inputs and outputs together, found one of them")
    if model.inputs and model.graph:
        raise SettingsError(f"model {model.name}: expected inputs and outputs, or graph, which has its own, found both")
    if model.trust:
        _check_trust(model)
    check_store(model.store)


def _check_trust(model: ModelSettings) -> None:
    given = [name for name in ("inputs", "outputs", "graph") if getattr(model, name)]
    if given:
        raise SettingsError(
            f"model {model.name}: expected trust, or {' and '.join(given)}, for checkpoints that others wrote,"
            " which nobody can sign, found both"
        )
    TrustedKeys(model.trust)


def check_store(path: Path) -> None:
    """Raise StoreError for a path that cannot be a store. It may be missing until somebody publishes."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(path, f"cannot be read: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(path, "expected a directory, found a file")
    if not os.access(path, os.R_OK | os.X_OK):
        raise StoreError(path, "cannot be read: permission denied; the user that runs this must be able to list it")


def prepare_environment() -> None:
    """Set variables that TensorFlow and gRPC read when they are imported, unless the operator has set them."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # the inferencer serves on the CPU
    # Without this, TensorFlow looks for GPUs, and logs that there are none.
    os.environ.setdefault("TF_ENABLED_DEVICE_TYPES", "CPU")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def _settings_of_model(name: str, values: Mapping[str, Any], cache: Path | None) -> AnySettings:
    if "first" in values:
        return ConnectionSettings(name=name, **values)
    return ModelSettings(name=name, **{**values, **_place(values["store"], cache)})


def _trainers(given: Sequence[tuple[str | None, str]], models: Collection[str]) -> dict[str | None, str]:
    """Return the trainer of each model. Under None is the trainer of all models without their own."""
    trainers: dict[str | None, str] = {}
    for model, address in given:
        if model is not None and model not in models:
            raise SettingsError(
                f"--trainer {model}={address}: expected one of the models {', '.join(models)}, found {model!r}"
            )
        if model in trainers:
            whose = "all models" if model is None else model
            raise SettingsError(f"--trainer: expected one trainer for {whose}, found {trainers[model]} and {address}")
        trainers[model] = address
    return trainers


def _state(control_port: int) -> Path | None:
    """Return the default folder of pins. Returns None for port 0, because a later start could not find the folder."""
    if not control_port:
        return None
    home = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(home) if Path(home).is_absolute() else Path("~/.local/state").expanduser()
    except RuntimeError:  # a user without a home, as in a container
        return None
    return base / "paramsync" / str(control_port)
