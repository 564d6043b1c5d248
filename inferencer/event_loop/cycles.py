"""How grpc.aio finds who answers a call: of itself it leaves five objects that refer to each other, of every call.

Such objects are freed by the collector of garbage only, which a busy server then runs fifty times a second.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined]

_PLAIN: Any = getattr(cygrpc, "_find_method_handler", None)
_KNOWN = ("method", "metadata", "method_resolver", "interceptors")


async def _found(method: str, metadata: object, resolver: Any, interceptors: Sequence[object]) -> Any:
    if interceptors:
        return await _PLAIN(method, metadata, resolver, interceptors)
    return resolver.resolve_handler(cygrpc._HandlerCallDetails(method, metadata))


def leave_no_cycles() -> None:
    """From now on, for all servers of this process; where grpc is not as it is known here, it stays as it is."""
    with suppress(TypeError, ValueError):  # nothing of this name, or nothing that says what it takes
        if tuple(inspect.signature(_PLAIN).parameters) == _KNOWN and hasattr(cygrpc, "_HandlerCallDetails"):
            cygrpc._find_method_handler = _found
