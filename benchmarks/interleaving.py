"""The order in which settings are measured: all of them by turns, so that drift hits all alike. Pure."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def rotated(names: Sequence[T], turn: int) -> list[T]:
    """The order of one turn: it begins one later each time, so that drift hits all alike."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]
