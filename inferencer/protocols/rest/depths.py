"""How deep in lists and objects each byte of JSON is, without parsing any of it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from paramsync.errors import RequestError

Array = np.ndarray[Any, Any]

MOST = 100
IN_STRING = -1
_STEP = 1 << 16  # bytes that are looked at in one go
_FAR = 1 << 20
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_BY = np.zeros(256, np.int8)
_BY[[ord("["), ord("{")]] = 1
_BY[[ord("]"), ord("}")]] = -1


class Depths:
    """Of JSON, else of nothing in particular: whoever parses what it cuts will see. Linear in the size of the text."""

    def __init__(self, content: bytes) -> None:
        """Raises RequestError for more levels than anybody needs."""
        self._bytes = np.frombuffer(content, np.uint8)
        self._depths = np.empty(len(content), np.int8)
        inside, depth, escaped = 0, 0, False
        for at in range(0, len(content), _STEP):
            part = content[at : at + _STEP]
            if escaped:
                part = b" " + part[1:]
            if b"\\" in part:
                part = _ESCAPE.sub(b"  ", part)
            escaped = part.endswith(b"\\")
            codes = np.frombuffer(part, np.uint8)
            within = (np.cumsum(codes == ord('"'), dtype=np.uint8) + inside & 1).astype(bool)
            steps = _BY[codes]
            steps[within] = 0
            depths = np.cumsum(steps, dtype=np.int32) + depth
            if depths.max() > MOST:
                raise RequestError("body: expected JSON, found more levels of it than anybody needs")
            inside, depth = int(within[-1]), max(-MOST, int(depths[-1]))
            depths = np.maximum(depths, -MOST).astype(np.int8)
            depths[within] = IN_STRING
            self._depths[at : at + _STEP] = depths

    def __getitem__(self, at: int) -> int:
        return int(self._depths[at])

    def last_comma(self, depth: int, begin: int, end: int) -> int:
        """Of those at this depth, the last one from here to there, or -1."""
        found = np.flatnonzero((self._depths[begin:end] == depth) & (self._bytes[begin:end] == ord(",")))
        return begin + int(found[-1]) if len(found) else -1

    def end(self, depth: int, at: int) -> int:
        """Where what is at this depth here ends: at a comma, or at the bracket that closes all of it, or nowhere."""
        for begin in range(at, len(self._depths), _FAR):
            depths, codes = self._depths[begin : begin + _FAR], self._bytes[begin : begin + _FAR]
            ends = (depths == depth) & (codes == ord(","))
            ends |= (depths == depth - 1) & ((codes == ord("]")) | (codes == ord("}")))
            if ends.any():
                return begin + int(ends.argmax())
        return len(self._depths)
