"""python -m tests.conformance.tf_serving CHECKOUT: its server's own test, then its SavedModels; counts, and why not."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.conformance.tf_serving.tree import checked, tree


def main() -> int:
    """Exit code 0 where nothing failed that could have passed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.tf_serving", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("checkout", type=Path, help="of TensorFlow Serving: the folder with tensorflow_serving/ in it")
    parser.add_argument("--only", choices=("test", "models"), help="one of the two")
    parser.add_argument("-k", dest="words", default="", help="only tests, or models, with this in their names")
    given = parser.parse_args()
    source = checked(given.checkout)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tf-serving-") as folder:
        tree(source, Path(folder))
        # Imported here: TensorFlow takes seconds, and --help needs none of it
        if given.only != "models":
            from tests.conformance.tf_serving import suite

            failed += suite.run(source, Path(folder), given.words)
        if given.only != "test":
            from tests.conformance.tf_serving import models

            failed += models.run(source, Path(folder), given.words)
    return int(failed > 0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
