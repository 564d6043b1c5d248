"""What MLServer calls: a runtime of its user's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput
from network import KINDS, newest


class Runtime(MLModel):
    """The newest network of the folder, as of when it was loaded. Rows come as bytes: MLServer need not unpack them."""

    async def load(self) -> bool:
        told = self.settings.parameters.extra
        self._network = await asyncio.to_thread(lambda: KINDS[told["kind"]](newest(Path(told["folder"]))))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        content = b"".join(payload.inputs[0].data.root)
        network = self._network
        y = network(np.frombuffer(content, network.dtype).reshape(-1, network.width))
        output = ResponseOutput(name="y", shape=list(y.shape), datatype="BYTES", data=[y.astype("f4").tobytes()])
        return InferenceResponse(model_name=self.name, outputs=[output])
