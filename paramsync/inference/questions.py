"""Question: a request's call of one version, whatever protocol it came by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from paramsync.inference.resident import Resident

Answer: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""The outputs asked for, by name."""


@dataclass(eq=False, slots=True)
class Question:
    """One call of one version. The names and dtypes of its inputs were checked against the signature."""

    model: str
    resident: Resident
    """The version that it was read for, and in the end the one that answers."""
    signature: str
    inputs: Mapping[str, npt.NDArray[np.generic]]
    outputs: tuple[str, ...] = ()
    """Empty for all outputs."""
    fits: bool = True
    """Whether the inputs have the shapes of the signature; a request with others goes alone."""
    latest: Callable[[], Resident] | None = None
    """Gives what serves now, where the request named no version: a request that waits for its call is answered by what
    serves when the call begins, if that has the same graph."""
