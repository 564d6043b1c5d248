"""Messages of gRPC are cut out of what comes, however it is cut into parts."""

from __future__ import annotations

import tracemalloc

import pytest

from inferencer.transport.grpc_wire import PREFIX, Messages
from paramsync.errors import RequestError

CONTENT = bytes(range(256)) * 100
WHOLE = PREFIX.pack(False, len(CONTENT)) + CONTENT


@pytest.mark.parametrize("size", [1, 2, 3, 7, 4096, 5000, len(WHOLE)])
def test_messages_are_the_same_however_they_are_cut(size: int) -> None:
    messages, stream = Messages(len(CONTENT)), WHOLE * 3
    found = []
    for at in range(0, len(stream), size):
        found += messages.came(stream[at : at + size], ended=at + size >= len(stream))
    assert [message.content for message in found] == [CONTENT] * 3
    assert messages.held == 0


def test_a_message_in_tiny_parts_takes_no_more_than_twice_its_size() -> None:
    messages = Messages(1 << 20)
    messages.came(PREFIX.pack(False, 1 << 20), ended=False)
    tracemalloc.start()
    for at in range(1 << 18):
        messages.came(at.to_bytes(3, "big"), ended=False)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert messages.held == 3 << 18
    assert taken < 2 * messages.held


def test_a_message_that_ends_too_soon_is_refused() -> None:
    for size in range(1, len(WHOLE), 5000):
        with pytest.raises(RequestError):
            Messages(len(CONTENT)).came(WHOLE[:size], ended=True)
