"""Triton Inference Server as PyTriton runs it: the network is a callable of this process.

A new version is an assignment here: what the callable computes with is this process's own.
"""

from __future__ import annotations

import tempfile

import numpy as np
from network import Following, arguments
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

_ROWS = 256


def main() -> None:
    told = arguments()
    following = Following(told.kind, told.folder)
    network = following.network

    @batch
    def infer(x):
        return [following.network(x)]

    with tempfile.TemporaryDirectory() as workspace:
        config = TritonConfig(
            grpc_port=told.port, grpc_address="127.0.0.1", allow_http=True, http_port=told.port + 1,
            allow_metrics=False, log_verbose=0,
        )  # fmt: skip
        with Triton(config=config, workspace=f"{workspace}/triton") as server:
            server.bind(
                model_name="bench",
                infer_func=infer,
                inputs=[Tensor(name="x", dtype=network.dtype, shape=(network.width,))],
                outputs=[Tensor(name="y", dtype=np.float32, shape=(network.classes,))],
                config=ModelConfig(max_batch_size=_ROWS, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
                strict=False,
            )
            server.serve()


if __name__ == "__main__":
    main()
