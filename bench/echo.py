"""A grpcio server that answers at once with SIZE bytes: `python -m bench.echo SIZE ...`.

The benchmark `serve` compares other servers with this server.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from bench.served import say_ready

SERVICE = "bench.Echo"


async def _serve(sizes: list[int]) -> None:
    server = grpc.aio.server()
    handlers = {str(size): _answering(bytes(size)) for size in sizes}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    say_ready("bench.echo", f"127.0.0.1:{port}")
    await server.wait_for_termination()


def _answering(response: bytes) -> Any:
    async def answer(request: bytes, context: Any) -> bytes:
        return response

    return grpc.unary_unary_rpc_method_handler(answer)


if __name__ == "__main__":
    asyncio.run(_serve([int(one) for one in sys.argv[1:]]))
