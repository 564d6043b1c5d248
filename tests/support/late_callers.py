"""N callers in one process, each with a large request: `python -m tests.support.late_callers PORT MESSAGE N`.

Prints a line for each caller: the size of its answer in bytes, or the reason why it got no answer.
"""

import sys
from pathlib import Path

import grpc
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection for each caller
    ("grpc.http2.lookahead_bytes", 1 << 24),  # the server may send a whole answer before the caller reads any of it
    ("grpc.tcp_receive_buffer_size", 1 << 16),  # so that most of the answer stays in the server
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
