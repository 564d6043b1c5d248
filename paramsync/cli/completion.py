"""`paramsync completion`: prints a shell's completion script, or the names of models that the script completes."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import Namespace

import shtab

from paramsync.cli.arguments import parser
from paramsync.errors import ParamsyncError

_FILES = {"STORE", "SOURCE", "LOGDIR", "FILE", "PATH", "DIR", "KEYFILE", "PREFIX"}
"""If help shows an argument under one of these names, the script completes it with names of files."""
_MODELS = shtab.cmd("paramsync completion models 2>/dev/null")


def run(arguments: Namespace) -> bool:
    if arguments.shell == "models":
        sys.stdout.write("".join(f"{name}\n" for name in _models()))
        return True
    known = parser()
    _complete_values(known)
    sys.stdout.write(shtab.complete(known, arguments.shell))
    return True


def _models() -> list[str]:
    """Return the models of the default servers. Names with characters that a shell would interpret are left out."""
    from paramsync.cli.servers import ask_all, connected  # here, because printing a script needs no gRPC

    default = Namespace(servers=None, token_file=None, tls_ca=None, tls_cert=None, tls_key=None)
    with connected(default) as inferencers:
        answers = ask_all(inferencers, lambda inferencer: inferencer.status())
    names = {model.model for answer in answers if not isinstance(answer, ParamsyncError) for model in answer}
    return sorted(name for name in names if re.fullmatch(r"[\w.@+-]+", name, re.ASCII))


def _complete_values(known: argparse.ArgumentParser) -> None:
    for action in known._actions:  # argparse has no other way to list them
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_values(command)
        elif action.metavar == "MODEL":
            action.complete = _MODELS  # type: ignore[attr-defined]  # read by shtab
        elif action.metavar in _FILES or action.nargs == "*":  # "*": the arguments of `serve` and `train`
            action.complete = shtab.FILE  # type: ignore[attr-defined]
