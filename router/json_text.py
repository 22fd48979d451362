"""JSON that is a text of its own: arguments of calls, schemas, names in a model's answer."""

from typing import Any, Literal

import pydantic_core

from flyserve.core.errors import InvalidRequest

MOST_DEPTH = 64
"""Deepest nesting of a JSON Schema."""


def parse_json_text(text: str, is_cut: bool = False) -> Any:
    """Return the value of a JSON text; raise ValueError if it is none, or nested too deep.

    It has the rules of bodies: no text has half of a surrogate pair, which neither a tokenizer nor a response
    can take. NaN and Infinity, which Python's own parser takes, are no JSON. With `is_cut` the text may end
    anywhere: the value then has the part that there is.
    """
    partial: Literal[False, "trailing-strings"] = "trailing-strings" if is_cut else False
    return pydantic_core.from_json(text, allow_inf_nan=False, allow_partial=partial)


def is_json_object(text: str) -> bool:
    """Return True if a text is a JSON object."""
    try:
        return isinstance(parse_json_text(text), dict)
    except ValueError:
        return False


def check_depth(value: Any, field: str) -> None:
    """Raise InvalidRequest if the value of a field is nested too deep; without recursion."""
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        if depth == MOST_DEPTH:
            raise InvalidRequest.of(field, f"is nested too deep, at most {MOST_DEPTH} levels")
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        depth += 1
