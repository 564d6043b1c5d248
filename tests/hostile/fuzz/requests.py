"""Changes requests as somebody would who knows the protocols: a field, a number of it, or the bytes themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_NUMBERS = [
    0, 1, -1, 2, 3, 127, 255, 65_536,
    (1 << 31) - 1, -(1 << 31), 1 << 32, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1,
]  # fmt: skip
_FLOATS = [0.0, -0.0, 1.5, float("nan"), float("inf"), -1e308, 5e-324]
_TEXTS = ["", "m", "x", "serving_default", "nobody", "\0", "a" * 5000, "\N{SNOWMAN}", "../..", "FP32", "%s{}"]
_JSON: list[Any] = [None, True, 0, -1, 1e400, 10**40, "", "x", [], {}, [[]], {"b64": "AA=="}, {"b64": "?"}, [1, [2]]]
_MOST = 64  # of one field


def mutated(message: Message, chance: Random) -> bytes:
    """The message with a few things changed, or none, as it is sent."""
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(chance.choice([0, 1, 1, 2, 3, 5])):
        _change(changed, chance)
    content = changed.SerializeToString()
    return _torn(content, chance) if chance.random() < 0.2 else content


def mutated_json(value: Any, chance: Random) -> bytes:
    """A value of JSON with a few things changed, or none, as it is sent."""
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        value = _changed(value, chance)
    content = json.dumps(value).encode()
    return _torn(content, chance) if chance.random() < 0.2 else content


def _torn(content: bytes, chance: Random) -> bytes:
    changed = bytearray(content or b"\0")
    at = chance.randrange(len(changed))
    match chance.randrange(4):
        case 0:
            changed[at] = chance.randrange(256)
        case 1:
            del changed[at:]
        case 2:
            changed[at:at] = chance.randbytes(chance.choice([1, 10, 1000]))
        case 3:
            changed += changed[at:]
    return bytes(changed)


def _change(message: Message, chance: Random) -> None:
    """Of this message, or of one in it, one field."""
    field = chance.choice(message.DESCRIPTOR.fields)
    if _is_map(field):
        _change_map(getattr(message, field.name), field, chance)
    elif field.is_repeated:
        _change_list(getattr(message, field.name), field, chance)
    elif field.message_type is not None:
        if message.HasField(field.name) and chance.random() < 0.2:
            message.ClearField(field.name)
        else:
            within = getattr(message, field.name)
            within.SetInParent()
            _change_within(within, chance)
    else:
        setattr(message, field.name, _value(field, chance))


def _change_within(message: Message, chance: Random) -> None:
    if message.DESCRIPTOR.fields:
        _change(message, chance)


def _change_map(values: Any, field: FieldDescriptor, chance: Random) -> None:
    assert field.message_type is not None
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    known = list(values)
    chosen = chance.choice(known) if known and chance.random() < 0.8 else _value(key, chance)
    if chosen in values and chance.random() < 0.2:
        del values[chosen]
    elif value.message_type is not None:
        _change_within(values[chosen], chance)
    else:
        values[chosen] = _value(value, chance)


def _change_list(values: Any, field: FieldDescriptor, chance: Random) -> None:
    if values and chance.random() < 0.3:
        del values[chance.randrange(len(values)) :]
    elif field.message_type is not None:
        chosen = chance.choice(values) if values and chance.random() < 0.8 else values.add()
        _change_within(chosen, chance)
    else:
        values.extend(_value(field, chance) for _ in range(chance.choice([1, 2, _MOST])))


def _value(field: FieldDescriptor, chance: Random) -> Any:
    kinds = FieldDescriptor
    match field.cpp_type:
        case kinds.CPPTYPE_STRING:
            if field.type == kinds.TYPE_BYTES:
                return chance.randbytes(chance.choice([0, 1, 4, 7, 8, 300]))
            return chance.choice(_TEXTS)
        case kinds.CPPTYPE_FLOAT | kinds.CPPTYPE_DOUBLE:
            return chance.choice(_FLOATS[:-2] if field.cpp_type == kinds.CPPTYPE_FLOAT else _FLOATS)
        case kinds.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case kinds.CPPTYPE_ENUM:
            return chance.choice([*(one.number for one in field.enum_type.values), 77])
        case _:
            return chance.choice([one for one in _NUMBERS if _fits(one, field)])


def _fits(number: int, field: FieldDescriptor) -> bool:
    bits = 32 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    unsigned = field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
    return 0 <= number < 1 << bits if unsigned else -(1 << bits - 1) <= number < 1 << bits - 1


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _changed(value: Any, chance: Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(sorted(value))
        rest = {one: value[one] for one in value if one != key}
        match chance.randrange(4):
            case 0:
                return rest
            case 1:
                return {**rest, chance.choice(_TEXTS): value[key]}
            case _:
                return {**rest, key: _changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        changed: Sequence[Any] = [value[at]] * _MOST if chance.random() < 0.1 else [_changed(value[at], chance)]
        return [*value[:at], *changed, *value[at + 1 :]]
    return chance.choice(_JSON)
