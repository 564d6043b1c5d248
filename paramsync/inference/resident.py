"""Resident: a version in memory, complete and checked, and how it is asked."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paramsync.errors import RequestError
from paramsync.graphs.graph import DEFAULT_SIGNATURE, Graph, TensorSpec
from paramsync.inference.values import fitting
from paramsync.version import Version

_log = logging.getLogger("paramsync.replica")


@dataclass(frozen=True, eq=False)
class Resident:
    """A version in memory, complete and checked. Immutable: a request that holds it is answered from it alone."""

    version: Version
    graph: Graph
    parameters: tuple[tf.Tensor, ...]
    parts: tuple[tuple[str, Version], ...] = ()
    """Of a connection: the name of each part, and its version."""

    def predict(
        self,
        inputs: Mapping[str, Any],
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Collection[str] = (),
    ) -> dict[str, tf.Tensor]:
        """The outputs named, or all of them. Raises UnknownSignatureError, InputError, RequestError.

        Inputs are tensors, arrays or lists; numbers of another dtype are converted where the model sees no difference.

        Not to be called where TensorFlow only notes what is to be computed: this version would be in those notes.
        """
        if not tf.executing_eagerly():
            raise RequestError("predict computes at once: call it outside of tf.function and tf.Graph().as_default()")
        if signature in self.graph.signatures:
            inputs = fitting(inputs, self.graph.signatures[signature])
        self.graph.check_inputs(signature, inputs, outputs)
        tensors = {name: tf.convert_to_tensor(value) for name, value in inputs.items()}
        return self.graph(self.parameters, tensors, signature=signature, outputs=outputs)


def warm(resident: Resident) -> None:
    """Calls each signature of a graph that is new here once: the first call prepares it, many times slower.

    A graph that cannot compute on made-up inputs may well do so on real ones, so that this never fails.
    """
    number = resident.version.number
    for name, signature in resident.graph.signatures.items():
        try:
            inputs = {spec.name: _blank(spec) for spec in signature.inputs.values()}
            resident.graph(resident.parameters, inputs, signature=name)
        except Exception as error:  # noqa: BLE001, see above
            _log.debug("version %d: %s was not called beforehand: %s", number, name, error)


def _blank(spec: TensorSpec) -> tf.Tensor:
    """Zeros, or empty strings; one of what there may be any number of."""
    return tf.zeros([1 if size is None else size for size in spec.shape or ()], tf.as_dtype(spec.dtype))
