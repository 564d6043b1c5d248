"""The containers' health: exit code 0 when the program beside it says that it serves."""

from __future__ import annotations

import sys

from paramsync.cli.arguments import INFERENCER, TRAINER
from paramsync.cli.settings import credentials
from paramsync.errors import ParamsyncError
from paramsync.rpc.client import Inferencer, Trainer


def main(program: str) -> int:
    try:
        shown = credentials()
        with Trainer(TRAINER, shown) if program == "trainer" else Inferencer(INFERENCER, shown) as client:
            serves = client.serves()
    except ParamsyncError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0 if serves else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
