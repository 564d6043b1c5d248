"""Question: a request's call of one version, whatever protocol it came by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from paramsync.inference.resident import Resident

Answer: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""The outputs asked for, by name."""


class Question(NamedTuple):
    """One call of one version. The names and dtypes of its inputs were checked against the signature."""

    model: str
    resident: Resident
    signature: str
    inputs: Mapping[str, npt.NDArray[np.generic]]
    outputs: tuple[str, ...] = ()
    """Empty for all outputs."""
    fits: bool = True
    """Whether the inputs have shapes that the signature names; others go alone."""
    latest: Callable[[], Resident] | None = None
    """Gives what serves now, where the request named no version: it is answered by what serves when its call begins."""
