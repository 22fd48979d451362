"""Turn bytes from hypothesis into requests: well-formed, nearly well-formed, or malformed."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_INTEGERS = (0, 1, 2, 3, 7, 15, 63, 64, 65, 255, 300, 512, 4095, 2**16, 2**31 - 1)
_UNSIGNED = (2**31, 2**32 - 1)
_WIDE = (2**32, 2**63 - 1)
_NEGATIVE = (-1, -2, -(2**31))
_FLOATS = (0.0, -0.0, 1.0, 0.5, 1e-9, -1.0, 2.0, 1e30, -1e30, math.nan, math.inf, -math.inf)
_STRINGS = (
    "",
    "a",
    " ",
    "the fox",
    "fly",
    "exact",
    "flyserve",
    "user",
    "\0",
    "\n",
    "😀",
    "é" * 300,
    "x" * 5000,
)
_MOST_REPEATED = (0, 1, 1, 2, 3, 20, 70)
_DEPTH = 5


class Choices:
    """Decisions from bytes; once these are used up, from a generator seeded with them."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)
        self._noise = random.Random(data)

    def below(self, limit: int) -> int:
        byte = next(self._bytes, None)
        return self._noise.randrange(limit) if byte is None or limit > 256 else byte % limit

    def of(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]

    def raw(self) -> bytes:
        return bytes(self._noise.randbytes(self.below(64))) if self.below(2) else bytes(self._bytes)


def requests_from(data: bytes, kind: Descriptor, genuine: Sequence[bytes]) -> list[bytes]:
    """Return the messages of one call.

    Args:
        data: Decides everything.
        kind: Of the request.
        genuine: The messages of a call as a client makes it; one where the call takes one.
    """
    choices = Choices(data)
    make: Callable[[Choices, Descriptor, Sequence[bytes]], list[bytes]] = choices.of(
        (_noise, _anything, _changed, _changed, _changed, _damaged, _disordered)
    )
    return make(choices, kind, genuine)


def _noise(choices: Choices, kind: Descriptor, genuine: Sequence[bytes]) -> list[bytes]:
    return [choices.raw() for _ in genuine]


def _anything(choices: Choices, kind: Descriptor, genuine: Sequence[bytes]) -> list[bytes]:
    """Return messages with random fields."""
    made = []
    for _ in genuine:
        message = GetMessageClass(kind)()
        _fill(message, choices, _DEPTH)
        made.append(message.SerializeToString())
    return made


def _changed(choices: Choices, kind: Descriptor, genuine: Sequence[bytes]) -> list[bytes]:
    """Return a client's messages with one to three fields changed."""
    made = []
    for original in genuine:
        message = GetMessageClass(kind).FromString(original)
        for _ in range(choices.below(4)):
            _change(message, choices)
        made.append(message.SerializeToString())
    return made


def _damaged(choices: Choices, kind: Descriptor, genuine: Sequence[bytes]) -> list[bytes]:
    """Return messages with bytes flipped, cut off or repeated."""
    made = []
    for original in genuine:
        broken = bytearray(original)
        for _ in range(choices.below(4)):
            if broken:
                broken[choices.below(len(broken))] ^= 1 << choices.below(8)
        cut = choices.below(len(broken) + 1)
        made.append(bytes(choices.of((broken, broken[:cut], broken + broken[cut:]))))
    return made


def _disordered(choices: Choices, kind: Descriptor, genuine: Sequence[bytes]) -> list[bytes]:
    """Return a client's messages in random order, some of them twice or never."""
    return [choices.of(genuine) for _ in range(choices.below(2 * len(genuine) + 1))]


def _change(message: Message, choices: Choices) -> None:
    """Set one field of the message or of a nested one."""
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    field = choices.of(fields)
    held = [present for present, _ in message.ListFields()]
    if held and choices.below(3):
        field = choices.of(held)
    if field.message_type is not None and not field.is_repeated and choices.below(4):
        _change(getattr(message, field.name), choices)
        return
    message.ClearField(field.name)
    _set(message, field, choices, _DEPTH)


def _fill(message: Message, choices: Choices, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if choices.below(3):
            _set(message, field, choices, depth)


def _set(message: Message, field: FieldDescriptor, choices: Choices, depth: int) -> None:
    if field.is_repeated:
        _set_all(message, field, choices, depth)
    elif field.message_type is None:
        setattr(message, field.name, _scalar(field, choices))
    else:
        part = getattr(message, field.name)
        part.SetInParent()
        if depth:
            _fill(part, choices, depth - 1)


def _set_all(message: Message, field: FieldDescriptor, choices: Choices, depth: int) -> None:
    held, number = getattr(message, field.name), choices.of(_MOST_REPEATED)
    kind = field.message_type
    if kind is None:
        held.extend(_scalar(field, choices) for _ in range(number))
    elif kind.GetOptions().map_entry:
        key, value = kind.fields_by_name["key"], kind.fields_by_name["value"]
        for _ in range(number):
            held[_scalar(key, choices)] = _scalar(value, choices)
    elif depth:
        for _ in range(number):
            _fill(held.add(), choices, depth - 1)


def _scalar(field: FieldDescriptor, choices: Choices) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return choices.raw() if field.type == FieldDescriptor.TYPE_BYTES else choices.of(_STRINGS)
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return choices.of(_FLOATS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return bool(choices.below(2))
        case FieldDescriptor.CPPTYPE_ENUM:
            return choices.of((*range(6), 99, -1))
        case FieldDescriptor.CPPTYPE_UINT32:
            return choices.of((*_INTEGERS, *_UNSIGNED))
        case FieldDescriptor.CPPTYPE_UINT64:
            return choices.of((*_INTEGERS, *_UNSIGNED, *_WIDE))
        case FieldDescriptor.CPPTYPE_INT32:
            return choices.of((*_INTEGERS, *_NEGATIVE))
    return choices.of((*_INTEGERS, *_UNSIGNED, *_WIDE, *_NEGATIVE))
