"""The arguments of all commands, with defaults, help texts and examples. Imports nothing that takes time."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from paramsync.cli.settings import SERVER
from paramsync.host.files import line
from paramsync.moments import LATEST_MOMENT
from paramsync.program.flags import seconds
from paramsync.rpc.addresses import CONTROL_PORT, HOST, PREDICTIONS_PORT, REST_PORT, TRAINER_PORT, address, read_port

INFERENCER = address(HOST, CONTROL_PORT)
TRAINER = address(HOST, TRAINER_PORT)
PREDICTIONS = address(HOST, PREDICTIONS_PORT)
HTTP = address(HOST, REST_PORT)

_DIGITS = 18  # the most digits in the number of a version


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments. Wrong arguments end the program with exit code 2."""
    top = parser()
    arguments, unknown = top.parse_known_args(argv)
    if unknown:
        _refuse(top, f"{top.prog} {arguments.command}", f"unexpected argument {unknown[0]!r}")
    return arguments


def parser() -> argparse.ArgumentParser:
    top: argparse.ArgumentParser = _Parser(
        prog="paramsync",
        description="Keeps an inference copy of a TensorFlow model up to date while the model is\nbeing trained.",
        epilog=f"{_EXAMPLES}\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action=_Release, help="print the release of paramsync that is installed")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    _add_up(commands)
    _add_operating(commands)
    _add_predict(commands)
    _add_looking(commands)
    _add_mirror(commands)
    _add_programs(commands)
    text = "bash, zsh or fish; models: list the names of models that the scripts complete"
    completion = _command(commands, "completion", "completion", "print the completion script of a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish", "models"), metavar="SHELL", help=text)
    return top


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments on one line that names the help. Ends the program with exit code 2."""

    def error(self, message: str) -> NoReturn:
        known = re.match(r"argument (?:COMMAND|ACTION): invalid choice: (.*?) \(choose from (.*)\)", message)
        if known:
            message = f"expected a command, found {known[1]}{_nearest(known[1], re.split(r', *', known[2]))}"
        if re.search(r"required: (COMMAND|ACTION)$", message):
            message = "expected a command"
        _refuse(self, self.prog, message)


def _refuse(known: argparse.ArgumentParser, command: str, why: str) -> NoReturn:
    known.exit(2, f"{command}: {line(why)}; see `{command} --help`\n")


def _nearest(word: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches  # here, because it is only needed for wrong arguments

    near = get_close_matches(word.strip("'"), [name.strip("'") for name in known], n=1)
    return f": did you mean {near[0]}?" if near else ""


_Commands = argparse._SubParsersAction  # argparse has no public name for this class


class _Release(argparse.Action):
    """Looks up the release only if `--version` is given."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, help: str) -> None:  # noqa: A002, argparse's word
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, top: argparse.ArgumentParser, *_: object) -> None:
        from paramsync.program.process import release

        sys.stdout.write(f"paramsync {release()}\n")
        top.exit()


def _command(
    commands: _Commands[argparse.ArgumentParser], name: str, module: str, summary: str, *, epilog: str = ""
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"{epilog}{_EXAMPLES_OF.get(name, '')}\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.set_defaults(module=module)
    return command


def _add_up(commands: _Commands[argparse.ArgumentParser]) -> None:
    up = _command(commands, "up", "up", "start a trainer and an inferencer here, and watch versions flow")
    text = "end S seconds after the first version serves"
    up.add_argument("--seconds", type=seconds(below=1e9), metavar="S", help=text)
    up.add_argument("--json", action="store_true", help="print a summary as one JSON object at the end")
    for option, default, what in (
        ("--port", PREDICTIONS_PORT, "predictions"),
        ("--rest-port", REST_PORT, "predictions over HTTP"),
        ("--control-port", CONTROL_PORT, "the inferencer's control"),
        ("--trainer-port", TRAINER_PORT, "the trainer's control"),
    ):
        text = f"for {what}; 0: any free port (default {default})"
        up.add_argument(option, type=read_port, default=default, metavar="PORT", help=text)


def _add_operating(commands: _Commands[argparse.ArgumentParser]) -> None:
    status = _command(commands, "status", "status", "show what is trained, published and served, and the lag")
    sync = _command(commands, "sync", "sync", "serve the newest version, or the given one, now, and wait for it")
    top = _command(commands, "top", "top", "show rates, latencies and workers every second, until Ctrl-C")
    watch = _command(commands, "watch", "operate", "print events of versions as they happen, until Ctrl-C")
    pin = _command(commands, "pin", "operate", "serve one version, and do not follow newer ones")
    unpin = _command(commands, "unpin", "operate", "follow the newest version again")
    rollback = _command(
        commands, "rollback", "operate", "serve the version that served before, and do not follow newer ones"
    )
    label = _command(commands, "label", "operate", "name a version, so that requests can ask for it")
    unlabel = _command(commands, "unlabel", "operate", "remove a label")
    workers = _command(commands, "workers", "operate", "replace worker processes without downtime")
    actions = workers.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    replace = _command(
        actions, "replace", "operate", "replace worker processes one at a time, without dropping a request"
    )
    for command in (status, sync, watch, top):
        text = "not needed if only one model is served" if command is sync else "only this model"
        text = "only this model, or what is in a bucket, such as s3://bucket/digits" if command is status else text
        command.add_argument("model", nargs="?", default="", metavar="MODEL", help=text)
    for command in (pin, unpin, rollback, label, unlabel):
        text = "a model, or the address of a bucket such as s3://bucket/digits: of all its followers"
        command.add_argument("model", metavar="MODEL", help=text)
    pin.add_argument("version", type=_number, metavar="N")
    label.add_argument("label", metavar="LABEL", help="such as stable or canary")
    label.add_argument("version", type=_number, metavar="N", help="stays in memory as long as it has a label")
    unlabel.add_argument("label", metavar="LABEL")
    for command in (sync, pin, unpin, rollback):
        when = command.add_mutually_exclusive_group()
        text = "change at this time, at the same moment everywhere, such as 12:00:30; at most an hour ahead"
        when.add_argument("--at", type=_moment, metavar="TIME", help=text)
        text = "the same, S seconds from now"
        when.add_argument("--in", dest="at", type=_from_now, metavar="S", help=text)
    text = "print which version would serve, and change nothing"
    rollback.add_argument("--dry-run", action="store_true", help=text)
    status.add_argument("--watch", action="store_true", help="show it again whenever it changes, until Ctrl-C")
    text = "print one line for a monitor; the exit code is 0 for good, 1 for degraded, 2 for bad"
    status.add_argument("--check", action="store_true", help=text)
    text = "with --check: a model with a larger lag is degraded (default 60)"
    status.add_argument("--max-lag", type=seconds(below=1e9), metavar="S", help=text)
    text = "with --check: a model with older answers is degraded (default: any age is good)"
    status.add_argument("--max-age", type=seconds(below=1e9), metavar="S", help=text)
    which = sync.add_mutually_exclusive_group()
    which.add_argument("--version", type=_number, metavar="N", help="this version instead of the newest")
    which.add_argument("--fresh", action="store_true", help="ask the trainer to publish first, and serve that version")
    sync.add_argument("--all", action="store_true", help="every model of every server")
    text = "stop waiting after S seconds (default 30)"
    sync.add_argument("--timeout", type=seconds(below=1e9), default=30.0, metavar="S", help=text)
    text = "end after S seconds"
    top.add_argument("--seconds", type=seconds(below=1e9), metavar="S", help=text)
    for command in (status, sync, watch, top, pin, unpin, rollback, label, unlabel, replace):
        _add_servers(command)
        _add_json(command, _JSON_LINES.get(command.prog.split()[-1], _JSON))
        _add_credentials(command)
    text = f"the trainer's control port (default {TRAINER}, which may be absent if --server is given)"
    status.add_argument("--trainer", metavar="HOST:PORT", help=text)
    page = _command(commands, "open", "open", "open the page of a server in a browser, and print its address")
    _add_address(page, "--http", HTTP, "the inferencer's port for HTTP")
    _add_tls(page)
    page.set_defaults(token_file=None)  # the page asks for the token itself


def _add_servers(command: argparse.ArgumentParser) -> None:
    text = (
        "an inferencer's control port, or dns:///NAME:PORT: of each address of the name; may be repeated"
        f" (default ${SERVER}, or {INFERENCER})"
    )
    command.add_argument("--server", dest="servers", action="append", metavar="HOST:PORT", help=text)
    # --inferencer is an older name of --server; --servers is for a list of several
    command.add_argument("--inferencer", "--servers", dest="servers", action="append", help=argparse.SUPPRESS)


def _add_predict(commands: _Commands[argparse.ArgumentParser]) -> None:
    values = (
        "VALUE is JSON, @FILE.npy or @FILE.npz:KEY. JSON numbers become float32, or int64\n"
        "if all are whole and the model does not ask for float32; arrays from files\n"
        "keep their dtype.\n\n"
    )
    predict = _command(
        commands, "predict", "predict", "send a request to a model, and print which version answered", epilog=values
    )
    add = predict.add_argument
    add("model", metavar="MODEL")
    text = "one input of the model; repeat for each input"
    add("--input", dest="inputs", action="append", required=True, type=_named_value, metavar="NAME=VALUE", help=text)
    add("--rows", type=_number, metavar="N", help="send only the first N rows of each input")
    _add_address(predict, "--server", PREDICTIONS, "the port for predictions, not the control port")
    _add_credentials(predict)
    _add_json(predict)


_STORE = "the directory that is published to, or the address of a bucket such as s3://bucket/digits"


def _add_looking(commands: _Commands[argparse.ArgumentParser]) -> None:
    versions = _command(
        commands, "versions", "versions", "list the versions in a store, their sizes, and processes that hold them"
    )
    verify = _command(commands, "verify", "verify", "check every checksum of a version in a store")
    diff = _command(commands, "diff", "diff", "show which parameters differ between two versions, and by how much")
    for command in (versions, verify, diff):
        command.add_argument("store", metavar="STORE", help=_STORE)
    diff.add_argument("old", nargs="?", type=_number, metavar="V1", help="default: the version before V2")
    diff.add_argument("new", nargs="?", type=_number, metavar="V2", help="default: the newest")
    text = "also check that one of the public keys in this file signed the version; may be repeated"
    verify.add_argument("--trust", action="append", default=[], metavar="KEYFILE", help=text)
    text = "show only the N parameters that changed most"
    diff.add_argument("--top", type=_number, metavar="N", help=text)
    which = verify.add_mutually_exclusive_group()
    which.add_argument("version", nargs="?", type=_number, metavar="VERSION", help="default: the newest")
    which.add_argument("--all", action="store_true", help="every version")

    keys = _command(commands, "keys", "keys", "make keys to sign versions with")
    making = keys.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    new = _command(making, "new", "keys", "make PREFIX.key, to sign with, and PREFIX.pub, to trust; never overwrite")
    new.add_argument("prefix", metavar="PREFIX", help="such as /etc/paramsync/digits")
    _add_json(new)

    graph = _command(commands, "graph", "graph", "look at a graph, or put one into a store")
    actions = graph.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    show = _command(actions, "show", "graph", "list inputs, outputs, parameters, tables and ops")
    tensorboard = _command(actions, "tensorboard", "graph", "write the graph for TensorBoard")
    source = "a store, graph-….pb, ….meta, a SavedModel's directory, or a frozen graph's ….pb"
    for command in (show, tensorboard):
        command.add_argument("source", metavar="SOURCE", help=source)
    tensorboard.add_argument("logdir", metavar="LOGDIR", help="the log directory of TensorBoard")
    build = (
        "BUILD is a function of MODULE without arguments that returns a Keras model, a\n"
        "tf.Module, or a Capture; or such a model itself. MODULE is imported with\n"
        "TensorFlow as the backend of Keras, from the current directory.\n"
        "\n"
    )
    summary = "put a model's graph into a store, for trainers without TensorFlow"
    publish = _command(actions, "publish", "graph", summary, epilog=build)
    publish.add_argument("target", metavar="MODULE:BUILD", help="such as models.digits:build")
    publish.add_argument("store", metavar="STORE", help="the directory that will be published to; made if missing")
    text = "allow this op in the graph; the inferencer has to allow it too"
    publish.add_argument("--allow-op", dest="allow_ops", action="append", default=[], metavar="NAME", help=text)
    for command in (versions, verify, diff, show, tensorboard, publish):
        _add_json(command)


def _add_mirror(commands: _Commands[argparse.ArgumentParser]) -> None:
    summary = "keep a store up with another one, to or from a bucket"
    places = (
        "SRC and DST are directories, or addresses such as s3://bucket/models/digits,\n"
        "gs:// and az://; at least one is an address. SRC may be several addresses\n"
        "of the same versions, separated by commas. Credentials and endpoints are of\n"
        "the environment: AWS_*, GOOGLE_*, AZURE_*, or those of the machine.\n\n"
    )
    mirror = _command(commands, "mirror", "mirror", summary, epilog=places)
    mirror.add_argument("source", metavar="SRC", help="the store that is published to")
    mirror.add_argument("target", metavar="DST", help="the store to bring up to it; a directory is made if missing")
    mirror.add_argument("--once", action="store_true", help="copy the newest version, and end")
    text = "how many of the newest versions DST lists (default 5)"
    mirror.add_argument("--keep", type=_positive, default=5, metavar="N", help=text)
    # Only parent programs use the next two. With --beside the mirror ends at the end of standard input. --seen gives
    # the run and epoch that the previous process reported.
    mirror.add_argument("--beside", metavar="NONCE", help=argparse.SUPPRESS)
    mirror.add_argument("--seen", nargs=2, metavar=("RUN", "EPOCH"), help=argparse.SUPPRESS)
    _add_json(mirror, _JSON_LINES["mirror"])

    unneeded = _command(commands, "gc", "gc", "delete the objects of a bucket that no version needs")
    unneeded.add_argument("address", metavar="ADDRESS", help="such as s3://bucket/models/digits")
    unneeded.add_argument("--dry-run", action="store_true", help="list the objects, and delete nothing")
    text = "wait S seconds first, for servers that still read them (default 60)"
    unneeded.add_argument("--grace", type=seconds(below=1e9), default=60.0, metavar="S", help=text)
    _add_json(unneeded)


def _add_programs(commands: _Commands[argparse.ArgumentParser]) -> None:
    """Add `serve` and `train`. All their arguments, even --help, are passed on to the program."""
    serving = "serve predictions; --tf-serving as first argument: take tensorflow_model_server's flags"
    for name, program, summary in (("serve", "inferencer", serving), ("train", "trainer", "train and publish")):
        command = commands.add_parser(name, help=summary, add_help=False, prefix_chars="\0")
        command.set_defaults(module="programs", program=program)
        command.add_argument("arguments", nargs="*")


_JSON = "print one JSON object"
_JSON_LINES = {
    "replace": "print each worker as one JSON object a line",
    "watch": "print each event as one JSON object a line",
    "top": "print one JSON object a second for each server",
    "mirror": "print each version that was copied as one JSON object a line",
}


def _add_json(command: argparse.ArgumentParser, text: str = _JSON) -> None:
    command.add_argument("--json", action="store_true", help=text)


def _add_address(command: argparse.ArgumentParser, option: str, default: str, what: str) -> None:
    command.add_argument(option, default=default, metavar="HOST:PORT", help=f"{what} (default {default})")


def _add_credentials(command: argparse.ArgumentParser) -> None:
    text = "send the token in this file (default: PARAMSYNC_TOKEN_FILE, or PARAMSYNC_TOKEN)"
    command.add_argument("--token-file", type=Path, metavar="FILE", help=text)
    _add_tls(command)


def _add_tls(command: argparse.ArgumentParser) -> None:
    trust = "use TLS, and trust servers whose certificates this CA signed (default: PARAMSYNC_TLS_CA, else no TLS)"
    for option, text in (
        ("--tls-ca", trust),
        ("--tls-cert", "the client certificate (default: PARAMSYNC_TLS_CERT)"),
        ("--tls-key", "the key of the client certificate (default: PARAMSYNC_TLS_KEY)"),
    ):
        command.add_argument(option, type=Path, metavar="FILE", help=text)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to {10**_DIGITS - 1}, found {text!r}")
    return int(text)


def _moment(text: str) -> float:
    """Return the seconds since the epoch of a time of today, or of a date and time."""
    from datetime import datetime  # here: few commands have a time

    for whole in (f"{time.strftime('%Y-%m-%d')} {text}", text):
        with suppress(ValueError):
            moment = datetime.fromisoformat(whole).astimezone().timestamp()
            if 0 < moment - time.time() <= LATEST_MOMENT:
                return moment
    raise argparse.ArgumentTypeError(f"expected a time within the next hour, such as 12:00:30, found {text!r}")


def _from_now(text: str) -> float:
    return time.time() + seconds(below=LATEST_MOMENT)(text)


def _positive(text: str) -> int:
    if (number := _number(text)) < 1:
        raise argparse.ArgumentTypeError("expected at least 1")
    return number


def _named_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, value


_EXAMPLES = """\
examples:
  paramsync up                          train and serve an example here
  paramsync status                      what is trained, published and served
  paramsync status --watch              the same, whenever it changes
  paramsync open                        the inferencer's page, in a browser
  paramsync top                         rates, latencies, versions and workers
  paramsync sync digits                 serve the newest version now
  paramsync sync digits --fresh         have the trainer publish first
  paramsync rollback digits             serve the version before, and keep it
  paramsync predict digits --input image=@held_out.npz:x --rows 3
  paramsync versions /dev/shm/digits    what is in a store, and who uses it
  paramsync diff /dev/shm/digits        what the newest version changed
  paramsync verify /dev/shm/digits      check its newest version
  paramsync graph show /dev/shm/digits  inputs, outputs and ops of its graph
  paramsync train --store /dev/shm/digits --job MODULE:FUNCTION
  paramsync serve --model digits=/dev/shm/digits
  paramsync serve --tf-serving --port=8500 --model_base_path=/models/digits
"""

_EXIT_CODES = "exit codes: 0 done, 1 it did not happen, 2 wrong arguments, 130 Ctrl-C"

_EXAMPLES_OF = {
    "status": """\
examples:
  paramsync status                        of all models
  paramsync status digits --watch         again whenever it changes
  paramsync status --server 10.0.0.1:8502 --server 10.0.0.2:8502
  PARAMSYNC_SERVER=10.0.0.1:8502,10.0.0.2:8502 paramsync status
  paramsync status --json | jq '.servers[].models[].serving.number'
""",
    "sync": """\
examples:
  paramsync sync digits                   the newest version, now
  paramsync sync digits --fresh           the trainer publishes first
  paramsync sync digits --version 420
  paramsync sync --all --timeout 60       every model of every server
""",
    "predict": """\
examples:
  paramsync predict digits --input image=@held_out.npz:x --rows 3
  paramsync predict mlp --input 'x=[[1, 2, 3, 4]]' --server 10.0.0.1:8500
""",
    "verify": """\
examples:
  paramsync verify /dev/shm/digits        the newest version
  paramsync verify /dev/shm/digits 420
  paramsync verify /dev/shm/digits --all
  paramsync verify /dev/shm/digits --trust digits.pub
""",
    "mirror": """\
examples:
  paramsync mirror /dev/shm/digits s3://bucket/models/digits
  paramsync mirror s3://bucket/models/digits /dev/shm/digits
  paramsync mirror s3://bucket/models/digits /tmp/digits --once
""",
    "completion": """\
examples:
  source <(paramsync completion bash)     in ~/.bashrc
  eval "$(paramsync completion zsh)"      in ~/.zshrc, after compinit
  paramsync completion fish > ~/.config/fish/completions/paramsync.fish
""",
}
