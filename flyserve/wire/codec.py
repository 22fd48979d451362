"""Generic conversion between dataclasses and messages, by the names of their fields.

Tokens and the messages of every step are hot; they have functions of their own in `streams` and `generation`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from flyserve.core.errors import InvalidRequest, cut
from flyserve.wire.enums import member_of, number_of

T = TypeVar("T")
M = TypeVar("M", bound=Message)

_Writer = Callable[[Any, Any, str], None]
_Reader = Callable[[Any, str], Any]

_INTEGERS = {
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
}
_SCALARS = {
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text",
}
_MOST_SHOWN_BYTES = 200
"""Longest value in an error: the limit that it breaks comes after it."""
_ABSENT = object()


def encode(value: object, message: M, path: str = "", without: Collection[str] = ()) -> M:
    """Fill a message from a dataclass and return it; None leaves a field absent.

    Args:
        value: A dataclass whose fields are fields of the message.
        message: Empty message.
        path: Prefix of field names in errors, such as `sampling.`.
        without: Fields that the caller sets.

    Raises:
        InvalidRequest: A value has another type than its field, or is out of its range.
    """
    kind: Any = type(value)
    for name, write in _writers(kind, message.DESCRIPTOR):
        if name not in without and (found := getattr(value, name)) is not None:
            write(message, found, path)
    return message


def decode(kind: Callable[..., T], message: Message, path: str = "", **known: Any) -> T:
    """Return a dataclass with the fields of a message; absent ones have the dataclass's defaults.

    Args:
        kind: A dataclass whose fields are fields of the message.
        message: Message to read.
        path: Prefix of field names in errors.
        known: Fields that the caller has decoded.

    Raises:
        InvalidRequest: An enumeration has a number that this version does not have.
    """
    for name, read in _readers(kind, message.DESCRIPTOR):
        if name not in known and (found := read(message, path)) is not _ABSENT:
            known[name] = found
    return kind(**known)


def set_field(message: Message, name: str, value: Any, path: str = "") -> None:
    """Set or extend one field that is not a message; raises InvalidRequest as `encode` does."""
    _value_writer(message.DESCRIPTOR.fields_by_name[name])(message, value, path)


def _value_writer(field: Any) -> _Writer:
    name = field.name

    def put(message: Any, value: Any) -> None:
        setattr(message, name, value)

    def extend(message: Any, values: Any) -> None:
        if isinstance(values, str):
            raise TypeError
        getattr(message, name).extend(values)

    def update(message: Any, values: Any) -> None:
        getattr(message, name).update(values)

    change = update if field.message_type is not None else extend if field.is_repeated else put

    def write(message: Any, value: Any, path: str) -> None:
        try:
            change(message, value)
        except (AttributeError, TypeError, ValueError):
            raise _fault(message, field, value, path) from None

    return write


def _fault(message: Message, field: Any, value: Any, path: str) -> InvalidRequest:
    """Return the error of a value that the field cannot take: of the first such item, if it is a list."""
    name, each, allowed = f"{path}{field.name}", "", _allowed(field)
    if field.is_repeated and field.message_type is None:
        index = _first_bad_item(message, field, value)
        each = "a list, each " if index is None else ""
        name, value = (name, value) if index is None else (f"{name}[{index}]", value[index])
    shown = cut(repr(value), _MOST_SHOWN_BYTES)
    return InvalidRequest.of(name, f"is {shown}, must be {each}{allowed}")


def _first_bad_item(message: Message, field: Any, values: Any) -> int | None:
    """Return the index of the first item that a repeated field cannot take; None if it is no list."""
    items = getattr(type(message)(), field.name)
    for index, value in enumerate(values if isinstance(values, list | tuple) else ()):
        try:
            items.append(value)
        except (TypeError, ValueError):
            return index
    return None


def _allowed(field: Any) -> str:
    if field.message_type is not None:
        return "token ids with numbers"
    if field.cpp_type in _INTEGERS:
        least, most = _INTEGERS[field.cpp_type]
        return f"a whole number from {least} to {most}"
    return _SCALARS[field.cpp_type]


@cache
def _writers(kind: Any, descriptor: Descriptor) -> tuple[tuple[str, _Writer], ...]:
    hints = get_type_hints(kind)
    return tuple(
        (field.name, _writer(field, hints[field.name])) for field in _shared_fields(kind, descriptor)
    )


@cache
def _readers(kind: Any, descriptor: Descriptor) -> tuple[tuple[str, _Reader], ...]:
    hints = get_type_hints(kind)
    required = {each.name for each in fields(kind) if each.default is each.default_factory is MISSING}
    return tuple(
        (field.name, _reader(field, hints[field.name], field.name in required))
        for field in _shared_fields(kind, descriptor)
    )


def _shared_fields(kind: Any, descriptor: Descriptor) -> list[Any]:
    by_name = descriptor.fields_by_name
    return [by_name[each.name] for each in fields(kind) if each.name in by_name]


def _writer(field: Any, hint: Any) -> _Writer:
    name, kind = field.name, _item_type(hint)

    def write_message(message: Any, value: Any, path: str) -> None:
        encode(value, getattr(message, name), f"{path}{name}.")
        getattr(message, name).SetInParent()

    def write_messages(message: Any, values: Any, path: str) -> None:
        for index, value in enumerate(values):
            encode(value, getattr(message, name).add(), f"{path}{name}[{index}].")

    def write_enum(message: Any, value: Any, path: str) -> None:
        setattr(message, name, number_of(kind, field.enum_type, value, f"{path}{name}"))

    def write_enums(message: Any, values: Any, path: str) -> None:
        for index, value in enumerate(values):
            getattr(message, name).append(number_of(kind, field.enum_type, value, f"{path}{name}[{index}]"))

    if field.enum_type is not None:
        return write_enums if field.is_repeated else write_enum
    if is_dataclass(kind):
        return write_messages if field.is_repeated else write_message
    return _value_writer(field)


def _reader(field: Any, hint: Any, is_required: bool) -> _Reader:
    name, kind = field.name, _item_type(hint)
    if field.enum_type is not None and field.is_repeated:
        return partial(_read_enums, name, kind, field.enum_type)
    if field.enum_type is not None:
        return partial(_read_enum, name, kind, field.enum_type, is_required)
    if is_dataclass(kind):
        if field.is_repeated:
            return partial(_read_messages, name, kind)
        return partial(_read_message, name, kind, NoneType in get_args(hint))
    if field.is_repeated:
        collect = dict if field.message_type is not None else tuple
        return lambda message, path: collect(getattr(message, name))
    if field.has_presence:
        return lambda message, path: getattr(message, name) if message.HasField(name) else _ABSENT
    if NoneType in get_args(hint):
        return lambda message, path: getattr(message, name) or None
    return lambda message, path: getattr(message, name)


def _read_enum(
    name: str, kind: type[Enum], descriptor: Any, is_required: bool, message: Any, path: str
) -> Any:
    number = getattr(message, name)
    return member_of(kind, descriptor, number, f"{path}{name}") if number or is_required else _ABSENT


def _read_enums(name: str, kind: type[Enum], descriptor: Any, message: Any, path: str) -> Any:
    found = enumerate(getattr(message, name))
    return tuple(member_of(kind, descriptor, each, f"{path}{name}[{index}]") for index, each in found)


def _read_message(name: str, kind: Any, is_optional: bool, message: Any, path: str) -> Any:
    if is_optional and not message.HasField(name):
        return None
    return decode(kind, getattr(message, name), f"{path}{name}.")


def _read_messages(name: str, kind: Any, message: Any, path: str) -> Any:
    found = getattr(message, name)
    return tuple(decode(kind, each, f"{path}{name}[{index}].") for index, each in enumerate(found))


def _item_type(hint: Any) -> Any:
    """Return the type behind `X | None` and `tuple[X, ...]`."""
    options = [option for option in get_args(hint) if option not in (NoneType, Ellipsis)]
    if get_origin(hint) is Mapping or not options:
        return hint
    return _item_type(options[0])
