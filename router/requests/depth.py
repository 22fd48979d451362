"""The depth of JSON that clients nest in requests."""

from typing import Any

from fly.errors import InvalidRequest

MOST_DEPTH = 64
"""Deepest nesting of a JSON Schema."""


def check_depth(value: Any, field: str) -> None:
    """Raise InvalidRequest if the value of a field is nested too deep; without recursion."""
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        if depth == MOST_DEPTH:
            raise InvalidRequest.of(field, f"is nested too deep, at most {MOST_DEPTH} levels")
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        depth += 1
