"""Puts a person's values into a message, and names the one that does not fit."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fly.errors import InvalidRequest

_RANGES = {
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
}
_KINDS = {
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text",
}


def fill(message: Message, path: str, values: Mapping[str, Any]) -> None:
    """Sets the fields that are not None; sequences and mappings extend.

    Args:
        message: To fill.
        path: What precedes a field's name in an error, such as `sampling.`.
        values: By the message's own field names.

    Raises:
        InvalidRequest: A value is of another type than the field, or out of its range.
    """
    for name, value in values.items():
        if value is None:
            continue
        try:
            _put(message, name, value)
        except (AttributeError, TypeError, ValueError):
            found = f"is {value!r}, must be {_allowed(message, name)}"
            raise InvalidRequest.of(f"{path}{name}", found) from None


def _put(message: Message, name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        getattr(message, name).update(value)
    elif isinstance(value, list | tuple):
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)


def _allowed(message: Message, name: str) -> str:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is not None:
        return "token ids with numbers"
    each = "a list, each " if field.is_repeated else ""
    if field.cpp_type in _RANGES:
        least, most = _RANGES[field.cpp_type]
        return f"{each}a whole number from {least} to {most}"
    return each + _KINDS.get(field.cpp_type, "something else")
