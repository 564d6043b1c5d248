"""`python -m bench`: run one benchmark and print its figures as a table or as JSON."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import settings
from paramsync.errors import ParamsyncError, SettingsError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns the exit code. Wrong arguments end the program with exit code 2."""
    try:
        parsed = settings.parse(sys.argv[1:] if argv is None else argv)
        settings.set_environment()
        _report(parsed, _measure(parsed))
    except SettingsError as error:
        return _refuse(error, 2)
    except ParamsyncError as error:
        return _refuse(error, 1)
    except KeyboardInterrupt:
        return 130
    return 0


def _measure(parsed: settings.Settings) -> dict[str, Any]:
    # Not at the top: --help must not wait for the import of numpy and TensorFlow.
    from bench import conditions

    benchmark = importlib.import_module(f"bench.{parsed.benchmark}")
    load_before = os.getloadavg()
    with (
        tempfile.TemporaryDirectory(prefix="paramsync-bench-", dir=parsed.folder) as name,
        contextlib.redirect_stdout(sys.stderr),  # some peers print
    ):
        figures: dict[str, Any] = benchmark.run(parsed, Path(name))
    return {
        "benchmark": parsed.benchmark,
        "bytes": parsed.bytes,
        **figures,
        "absent": parsed.absent() | figures.get("absent", {}),
        "conditions": conditions.collect(parsed, load_before),
    }


def _report(parsed: settings.Settings, figures: dict[str, Any]) -> None:
    from bench import report

    for name, reason in figures["absent"].items():
        if reason != settings.NOT_ASKED_FOR:
            sys.stderr.write(f"bench {parsed.benchmark}: {name} was not measured: {reason}\n")
    report.show(figures, stderr=parsed.json == "-")
    if parsed.json is not None:
        report.write(figures, parsed.json)


def _refuse(error: ParamsyncError, code: int) -> int:
    sys.stderr.write(f"bench: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
