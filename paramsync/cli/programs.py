"""The two programs: packed below `paramsync` where it is installed, beside it in a checkout."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from importlib.util import find_spec
from typing import NoReturn

from paramsync.errors import SettingsError

_TF_SERVING = "--tf-serving"


def module(program: str) -> str:
    """What `python -m` starts: "trainer", "inferencer", or a module within one."""
    packed = find_spec(f"paramsync.{program.partition('.')[0]}") is not None
    return f"paramsync.{program}" if packed else program


def run(arguments: Namespace) -> NoReturn:
    """Becomes the program, with the arguments that follow.

    To serve with --tf-serving first, the rest are flags of tensorflow_model_server.
    """
    if find_spec("tensorflow") is None:
        raise SettingsError("needs TensorFlow, which is not installed: pip install 'paramsync[tensorflow]'")
    given = arguments.arguments
    name = module(arguments.program)
    if arguments.program == "inferencer" and given[:1] == [_TF_SERVING]:
        name, given = f"{name}.program.tf_serving", given[1:]
    os.execv(sys.executable, [sys.executable, "-m", name, *given])
