"""paramsync serve: becomes the serving program, with the arguments that follow."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import NoReturn

_TF_SERVING = "--tf-serving"


def run(arguments: Namespace) -> NoReturn:
    """With --tf-serving first the rest are flags of tensorflow_model_server, else those of python -m inferencer."""
    given = arguments.arguments
    theirs = given[:1] == [_TF_SERVING]
    program = "inferencer.program.tf_serving" if theirs else "inferencer"
    os.execv(sys.executable, [sys.executable, "-m", program, *(given[1:] if theirs else given)])
