"""Enumerations on the wire, by name: the member `CARRY` of `TailPolicy` is `TAIL_POLICY_CARRY` there."""

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import TypeVar

from google.protobuf.descriptor import EnumDescriptor

from flyserve.core.errors import InvalidRequest, cut

E = TypeVar("E", bound=Enum)


@cache
def numbers(kind: type[E], descriptor: EnumDescriptor) -> Mapping[E, int]:
    """Return the wire's number of each member; raise KeyError if the wire lacks one."""
    prefix = re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).upper()
    return {member: descriptor.values_by_name[f"{prefix}_{member.name}"].number for member in kind}


@cache
def members(kind: type[E], descriptor: EnumDescriptor) -> Mapping[int, E]:
    """Return the member of each of the wire's numbers; 0, which is not set, has none."""
    return {number: member for member, number in numbers(kind, descriptor).items()}


def number_of(kind: type[E], descriptor: EnumDescriptor, member: E, field: str) -> int:
    """Return the wire's number of a member; raise InvalidRequest if it is not a member."""
    try:
        return numbers(kind, descriptor)[member]
    except (KeyError, TypeError):
        raise _unknown(kind, member, field) from None


def member_of(kind: type[E], descriptor: EnumDescriptor, number: int, field: str) -> E:
    """Return the member of a number other than 0; raise InvalidRequest if this version lacks the number."""
    try:
        member: E = members(kind, descriptor)[number]
    except KeyError:
        raise _unknown(kind, number, field) from None
    return member


def _unknown(kind: type[Enum], found: object, field: str) -> InvalidRequest:
    listed = ", ".join(str(member.value) for member in kind)
    return InvalidRequest.of(field, f"is {cut(repr(found), 200)}, must be one of {listed}")
