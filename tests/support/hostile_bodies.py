"""JSON that is meant to cost much, of any size."""

from __future__ import annotations

HOSTILE = {
    "lists": b"[],",
    "lists in lists": b"[[[[]]]],",
    "objects": b"{},",
    "objects of one": b'{"a":1},',
    "digits": b"1,",
    "numbers": b"1.5,",
    "large numbers": b"1e9,",
    "digits that are long": b"9" * 4000 + b",",
    "fractions that are long": b"0." + b"1" * 9000 + b",",
    "empty strings": b'"",',
    "strings": b'"ab",',
    "colons in strings": b'":",',
    "escapes": b'"' + b"\\u00e9\\n" * 20 + b'",',
    "bytes": b'{"b64":"AA=="},',
    "ragged": b"[1],[1,2],",
    "nothing": b"null,",
    "not numbers": b"NaN,",
    "all sorts": b'[1,"a",{"a":[null]}],',
}


def hostile(kind: str, size: int) -> bytes:
    if kind == "keys":
        return b'{"instances": [{' + b",".join(b'"%x":1' % at for at in range(size // 12)) + b"}]}"
    if kind == "keys, one twice":
        return hostile("keys", size)[:-3] + b',"last":1,"last":1}]}'
    if kind == "deep":
        return b'{"instances": ' + b"[" * size
    if kind == "deep, many":
        deep = b"[" * 30 + b"1," * 20_000 + b"1" + b"]" * 30
        return b'{"instances": [' + b",".join([deep] * (size // len(deep))) + b"]}"
    if kind == "one string":
        return b'{"instances": "' + b"\\" * (size // 2 * 2) + b'"}'
    if kind == "spaces":
        return b'{"instances": ' + b" " * size + b"[1]}"
    element = HOSTILE[kind]
    return b'{"instances": [' + (element * (size // len(element)))[:-1] + b"]}"


KINDS = [*HOSTILE, "keys", "keys, one twice", "deep", "deep, many", "one string", "spaces"]
