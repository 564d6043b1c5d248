"""Callers in a process of its own, a large request each: `python -m tests.support.late_callers PORT MESSAGE N`.

What became of each is a line: how many bytes its answer has, or why it has none.
"""

import sys
from pathlib import Path

import grpc
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection for each
    ("grpc.http2.lookahead_bytes", 1 << 24),  # so that a whole answer is on its way before any of it was read
    ("grpc.tcp_receive_buffer_size", 1 << 16),  # and most of it still where it was sent
]


def main(port: str, message: str, count: str) -> None:
    request = predict_pb2.PredictRequest.FromString(Path(message).read_bytes())
    channels = [grpc.insecure_channel(f"127.0.0.1:{port}", _OPTIONS) for _ in range(int(count))]
    stubs = [prediction_service_pb2_grpc.PredictionServiceStub(one) for one in channels]
    answers = [one.Predict.future(request, timeout=60.0) for one in stubs]
    for one in answers:
        error = one.exception()
        became = one.result().ByteSize() if error is None else f"{one.code()}: {one.details()}"
        sys.stdout.write(f"{became}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
