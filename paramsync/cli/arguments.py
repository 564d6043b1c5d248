"""What can be said to `paramsync` on the command line. Imports nothing that takes time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from paramsync.program.flags import seconds
from paramsync.rpc.addresses import CONTROL_PORT, HOST, PREDICTIONS_PORT, REST_PORT, TRAINER_PORT, address, read_port

INFERENCER = address(HOST, CONTROL_PORT)
TRAINER = address(HOST, TRAINER_PORT)
PREDICTIONS = address(HOST, PREDICTIONS_PORT)

_DIGITS = 18  # of a version's number

_EXAMPLES = """\
examples:
  paramsync up                          see it work, on this machine
  paramsync status                      what is trained, published and served, and how far apart
  paramsync sync digits                 serve the newest version now
  paramsync sync digits --fresh         have the trainer publish first
  paramsync rollback digits             serve the version before, and stay there
  paramsync predict digits --input image=@held_out.npz:x --rows 3
  paramsync versions /dev/shm/digits    what is in a store, and who uses it
  paramsync verify /dev/shm/digits      whether it is what was published
  paramsync graph show /dev/shm/digits  what its graph takes and gives, and is made of
  paramsync train --store /dev/shm/digits --job MODULE:FUNCTION
  paramsync serve --model digits=/dev/shm/digits
  paramsync serve --tf-serving --port=8500 --rest_api_port=8501 --model_base_path=/models/digits

exit codes: 0 done, 1 it did not happen, 2 wrong arguments
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="paramsync",
        description="Keeps an inference copy of a TensorFlow model up to date while the model is being trained.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action=_Release, help="print the release of paramsync that is installed")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    for add in (
        _add_up, _add_status, _add_sync, _add_watch, _add_pin, _add_unpin, _add_rollback, _add_label, _add_unlabel,
        _add_predict, _add_versions, _add_verify, _add_graph, _add_serve, _add_train,
    ):  # fmt: skip
        add(commands)
    return top


class _Release(argparse.Action):
    """Looks the release up only where somebody asks."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, help: str) -> None:  # noqa: A002, argparse's word
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, top: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"paramsync {version('paramsync')}\n")
        top.exit()


_Commands = argparse._SubParsersAction  # argparse gives it no public name


def _command(
    commands: _Commands[argparse.ArgumentParser], name: str, module: str, summary: str
) -> argparse.ArgumentParser:
    one = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False
    )
    one.set_defaults(module=module)
    return one


def _add_up(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "up", "up", "start a trainer and an inferencer here and watch versions flow")
    one.add_argument(
        "--seconds", type=seconds(below=1e9), metavar="S", help="end by itself S seconds after the first version serves"
    )
    one.add_argument("--json", action="store_true", help="at the end print what happened as one JSON object")
    for option, default, what in (
        ("--port", PREDICTIONS_PORT, "predictions"),
        ("--rest-port", REST_PORT, "predictions over HTTP"),
        ("--control-port", CONTROL_PORT, "the inferencer's control"),
        ("--trainer-port", TRAINER_PORT, "the trainer's control"),
    ):
        text = f"for {what}; 0: any free port (default {default})"
        one.add_argument(option, type=read_port, default=default, metavar="PORT", help=text)


def _add_status(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "status", "status", "show what is trained, published and served, and how far apart")
    one.add_argument("model", nargs="?", default="", metavar="MODEL", help="one model in place of all")
    _add_inferencer(one)
    one.add_argument(
        "--trainer", default=TRAINER, metavar="HOST:PORT", help=f"the trainer's control port (default {TRAINER})"
    )


def _add_sync(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "sync", "sync", "serve the newest version, or the one given, now; wait until it serves")
    one.add_argument("model", nargs="?", default="", metavar="MODEL", help="may be left out where one model is served")
    which = one.add_mutually_exclusive_group()
    which.add_argument("--version", type=_number, metavar="N", help="this version in place of the newest")
    which.add_argument("--fresh", action="store_true", help="have the trainer publish now, and serve that version")
    one.add_argument(
        "--timeout", type=seconds(below=1e9), default=30.0, metavar="S", help="give up after S seconds (default 30)"
    )
    _add_inferencer(one)


def _add_watch(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "watch", "watch", "tell what happens to versions, until it is interrupted")
    one.add_argument("model", nargs="?", default="", metavar="MODEL", help="one model in place of all")
    _add_inferencer(one, json="print each event as one JSON object a line")


def _add_pin(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "pin", "pin", "serve one version and stay there")
    one.add_argument("model", metavar="MODEL")
    one.add_argument("version", type=_number, metavar="N")
    _add_inferencer(one)


def _add_unpin(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "unpin", "pin", "follow the newest version again")
    one.add_argument("model", metavar="MODEL")
    _add_inferencer(one)


def _add_rollback(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "rollback", "pin", "serve the version that served before, and stay there")
    one.add_argument("model", metavar="MODEL")
    _add_inferencer(one)


def _add_label(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "label", "label", "give a version a name that requests may ask for")
    one.add_argument("model", metavar="MODEL")
    one.add_argument("label", metavar="LABEL", help="such as stable or canary")
    one.add_argument("version", type=_number, metavar="N", help="it stays in memory as long as it has a label")
    _add_inferencer(one)


def _add_unlabel(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "unlabel", "label", "forget a label")
    one.add_argument("model", metavar="MODEL")
    one.add_argument("label", metavar="LABEL")
    _add_inferencer(one)


def _add_predict(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "predict", "predict", "ask a model, and say which version answered")
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    one.epilog = (
        "VALUE is JSON, @FILE.npy or @FILE.npz:KEY. JSON numbers become float32, or int64 where all are whole and\n"
        "the model does not ask for float32; arrays from files keep their dtype."
    )
    one.add_argument("model", metavar="MODEL")
    one.add_argument(
        "--input", dest="inputs", action="append", required=True, type=_named_value, metavar="NAME=VALUE",
        help="one input of the model; once for each",
    )  # fmt: skip
    one.add_argument("--rows", type=_number, metavar="N", help="send only the first N rows of each input")
    one.add_argument(
        "--server", default=PREDICTIONS, metavar="HOST:PORT", help=f"the predictions port (default {PREDICTIONS})"
    )
    _add_json(one)


def _add_versions(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "versions", "versions", "list what is in a store: sizes, what is shared, who holds it")
    one.add_argument("store", metavar="STORE", help="the directory that is published to")
    _add_json(one)


def _add_verify(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "verify", "verify", "compute every checksum of a version in a store again")
    one.add_argument("store", metavar="STORE", help="the directory that is published to")
    which = one.add_mutually_exclusive_group()
    which.add_argument("version", nargs="?", type=_number, metavar="VERSION", help="in place of the newest")
    which.add_argument("--all", action="store_true", help="every version that is there")
    _add_json(one)


def _add_graph(commands: _Commands[argparse.ArgumentParser]) -> None:
    one = _command(commands, "graph", "graph", "look at a graph, or put one into a store")
    actions = one.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    show = _command(actions, "show", "graph", "list inputs, outputs, parameters, tables and ops")
    tensorboard = _command(actions, "tensorboard", "graph", "write the graph to where TensorBoard shows it")
    source = "a store, graph-….pb, ….meta, a SavedModel's directory, or a frozen graph's ….pb"
    for action in (show, tensorboard):
        action.add_argument("source", metavar="SOURCE", help=source)
    tensorboard.add_argument("logdir", metavar="LOGDIR", help="the directory that TensorBoard is started with")
    publish = _command(actions, "publish", "graph_publish", "put a model's graph into a store, for other frameworks")
    publish.formatter_class = argparse.RawDescriptionHelpFormatter
    publish.epilog = (
        "BUILD is a function of MODULE without arguments that returns a Keras model, a tf.Module, or a Capture; or\n"
        "such a model itself. MODULE is imported with TensorFlow as the backend of Keras, from the current directory."
    )
    publish.add_argument("target", metavar="MODULE:BUILD", help="such as models.digits:build")
    publish.add_argument("store", metavar="STORE", help="the directory that will be published to; made if need be")
    for action in (show, tensorboard, publish):
        _add_json(action)


def _add_serve(commands: _Commands[argparse.ArgumentParser]) -> None:
    summary = (
        "serve predictions, as python -m inferencer does; with --tf-serving first, by tensorflow_model_server's flags"
    )
    one = commands.add_parser("serve", help=summary, add_help=False, prefix_chars="\0")  # all is passed on, --help too
    one.set_defaults(module="programs", program="inferencer")
    one.add_argument("arguments", nargs="*")


def _add_train(commands: _Commands[argparse.ArgumentParser]) -> None:
    summary = "train and publish, as python -m trainer does"
    one = commands.add_parser("train", help=summary, add_help=False, prefix_chars="\0")
    one.set_defaults(module="programs", program="trainer")
    one.add_argument("arguments", nargs="*")


def _add_inferencer(one: argparse.ArgumentParser, *, json: str = "print one JSON object") -> None:
    text = f"the inferencer's control port (default {INFERENCER})"
    one.add_argument("--inferencer", default=INFERENCER, metavar="HOST:PORT", help=text)
    _add_json(one, json)


def _add_json(one: argparse.ArgumentParser, text: str = "print one JSON object") -> None:
    one.add_argument("--json", action="store_true", help=text)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to {10**_DIGITS - 1}, found {text!r}")
    return int(text)


def _named_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, value
