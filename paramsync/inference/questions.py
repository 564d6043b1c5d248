"""Question: a request to compute a signature of one version, the same for every protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from paramsync.inference.resident import Resident

Answer: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""The requested outputs, by name."""


@dataclass(eq=False, slots=True)
class Question:
    """Inputs for a signature of one version. Their names and dtypes are checked already."""

    model: str
    resident: Resident
    """The version for which the request was read; after the call, the version that answered."""
    signature: str
    inputs: Mapping[str, npt.NDArray[np.generic]]
    outputs: tuple[str, ...] = ()
    """The names of the requested outputs; empty for all."""
    fits: bool = True
    """Whether the inputs have the shapes of the signature. If not, the request gets its own call."""
    latest: Callable[[], Resident] | None = None
    """Returns the serving version; None if the request named a version.

    A waiting request is answered by the version that serves when its call begins, if the graph is the same.
    """
